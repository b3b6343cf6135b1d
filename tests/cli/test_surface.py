"""The command's frozen surface: verbs, flags, help. A change here is a change for every script that calls dspark."""

import subprocess
import sys

import pytest
import typer.main

from dspark.cli.main import app
from dspark.cli.runner import exit_status

SAMPLING = {"--max-tokens", "--temperature", "--top-k", "--top-p", "--min-p", "--seed"}
COPYING = {"--lookup", "--no-lookup"}
SURFACE = {
    "generate": SAMPLING
    | {"--prompt-file", "--target", "--drafter", "--dtype", "--raw", "--system", "--stop", "--ignore-eos"}
    | {"--repetition-penalty", "--presence-penalty", "--frequency-penalty"}
    | {"--max-draft-tokens", "--block-verification", "--json"}
    | COPYING,
    "chat": SAMPLING | {"--target", "--drafter", "--dtype", "--max-draft-tokens", "--system", "--json"} | COPYING,
    "eval": SAMPLING
    | COPYING
    | {
        "--limit",
        "--journal",
        "--target",
        "--drafter",
        "--dtype",
        "--max-draft-tokens",
        "--block-verification",
        "--json",
    },
    "bench": {"--arms", "--concurrency", "--rate", "--variation", "--limit", "--max-prompt-tokens", "--requests"}
    | {"--repeats", "--whole", "--seed", "--journal", "--steps", "--plot", "--target", "--drafter", "--mtp", "--lookup"}
    | {"--max-tokens", "--temperature", "--ignore-eos", "--max-requests", "--overlap", "--dtype", "--device", "--json"},
    "train": {"--output", "--set", "--target", "--features", "--log", "--target-ranks", "--json"}
    | {"--states", "--states-model", "--states-dir"},
    "data regenerate": {
        "--output",
        "--split",
        "--limit",
        "--target",
        "--system",
        "--thinking",
        "--max-tokens",
        "--seed",
    }
    | {"--temperature", "--top-k", "--top-p", "--min-p", "--concurrency", "--endpoint", "--model", "--api"}
    | {"--token-ids", "--no-token-ids", "--api-key-env", "--timeout", "--attempts", "--dtype", "--json"},
    "data estimate": {"--set", "--target", "--measure", "--flops", "--price-per-hour", "--json"},
    "calibrate": {"--data", "--limit", "--report-share", "--method", "--records", "--output", "--plot", "--target"}
    | {"--max-tokens", "--temperature", "--seed", "--block-verification", "--dtype", "--json"},
    "profile": {
        "--target",
        "--drafter",
        "--dtype",
        "--context",
        "--requests",
        "--threads",
        "--seconds",
        "--fresh",
        "--plot",
        "--json",
    },
    "inspect": {"--parity", "--target", "--curves", "--json"},
    "doctor": {"--json"},
}


def flags_of(verb: str) -> set[str]:
    command = typer.main.get_command(app)
    for name in verb.split():
        command = command.commands[name]
    return {
        flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts) if "--" in flag
    }


def test_the_verbs_are_these():
    assert set(typer.main.get_command(app).commands) == {verb.split()[0] for verb in SURFACE}


@pytest.mark.parametrize("verb", SURFACE)
def test_the_flags_of_a_verb_are_these(verb):
    assert flags_of(verb) == SURFACE[verb]


@pytest.mark.parametrize("verb", SURFACE)
def test_every_verb_has_json_and_examples(verb, capsys):
    assert exit_status(app, [*verb.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples" in out
    assert f"dspark {verb}" in out.split("Examples")[1]
    assert "--json" in out


def test_version_and_bare_command(capsys):
    assert exit_status(app, ["--version"]) == 0
    assert capsys.readouterr().out.startswith("dspark 0.")
    assert exit_status(app, []) == 2
    captured = capsys.readouterr()
    assert "Usage: dspark" in captured.out + captured.err


def test_help_does_not_import_torch():
    script = "import sys; from dspark.cli.main import app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
