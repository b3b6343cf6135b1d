"""The README's commands and its Python run as they are printed; long ones are only shortened."""

import json
import re
import shlex
from pathlib import Path

import pytest

from dspark.cli.main import app
from dspark.cli.runner import exit_status
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for language, block in BLOCKS
    for line in block.splitlines()
    if not language and line.startswith("dspark ")
]
SHORTENED = {
    "bench": ["--max-tokens", "4", "--requests", "2", "--arms", "plain,lagged", "--concurrency", "1"],
    "generate": ["--max-tokens", "8"],
    "eval": ["--max-tokens", "4"],
    "calibrate": ["--max-tokens", "24"],
    "data": ["--max-tokens", "4"],
    "profile": ["--seconds", "1", "--context", "16"],
    "train": [
        *("--set", "optimiser.total_steps=1", "--set", "data.held_out=1"),
        *("--set", "data.answers_per_step=1", "--set", "data.anchors_per_answer=4", "--set", "data.max_length=64"),
    ],
}


def test_the_readme_opens_with_the_two_commands() -> None:
    assert [line.split()[:2] for line in BLOCKS[0][1].splitlines()] == [["make", "demo"], ["make", "test"]]


def test_it_shows_every_verb() -> None:
    verbs = {"bench", "calibrate", "chat", "data", "doctor", "eval", "generate", "inspect", "profile", "train"}
    assert {command[0] for command in COMMANDS} == verbs


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(command[:2]) for command in COMMANDS])
def test_commands_run(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_wheel: str, shared_dir: Path
) -> None:
    for name in ("src", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    prompts = [json.dumps({"turns": [f"Count to {n}."]}) for n in (3, 4, 5, 6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    if command[0] == "train":
        answers = shared_dir / "data" / "train" / "smollm2-135m.jsonl.gz"
        command = [*command, "--set", f"data.answers={answers}"]
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "prompts.jsonl").open() as typed:
        monkeypatch.setattr("sys.stdin", typed)
        assert exit_status(app, [*command, *SHORTENED.get(command[0], [])]) == 0


@pytest.mark.slow
# Of a machine too busy to be measured in time, at all or for many requests:
@pytest.mark.filterwarnings("ignore:no cost table:UserWarning")
@pytest.mark.filterwarnings("ignore:the cost table has no draft time:UserWarning")
def test_python_runs(monkeypatch: pytest.MonkeyPatch, model_wheel: str, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = [block for language, block in BLOCKS if language == "python"]
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.split()[-1].startswith(("1", "2", "3"))
