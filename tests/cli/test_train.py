"""`dspark train` on a small target: a few steps, a drafter that loads, refusals."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors import SafetensorError

from dspark.training.state import read_state

RECIPE = {
    "target": "target",
    "drafter": {
        "num_hidden_layers": 1,
        "block_size": 3,
        "target_layer_ids": [0, 2],
        "mask_token_id": 258,
        "markov_rank": 4,
    },
    "data": {"answers_per_step": 1, "anchors_per_answer": 4, "held_out": 1, "teacher_top_k": 8},
    "optimiser": {"total_steps": 2},
}


@pytest.fixture
def recipe(tmp_path):
    rows = [
        {
            "id": str(i),
            "domain": "chat",
            "prompt_ids": [65, 66, 67],
            "response_ids": list(range(70, 100)),
            "temperature": 0,
        }
        for i in range(4)
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = RECIPE | {"data": RECIPE["data"] | {"answers": str(tmp_path / "answers.jsonl")}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path / "recipe.yaml"


def test_a_recipe_becomes_a_drafter_that_decodes(run, world, recipe, tmp_path):
    outcome = run("train", recipe, "-o", tmp_path / "run", "-t", world / "target", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    report = outcome.json
    assert (report["step"], report["finished"]) == (2, True)
    drafting = ("-d", report["drafter"], "--max-draft-tokens", 3)
    answer = run("generate", "Hi", "-t", world / "target", *drafting, "-n", 6, "--ignore-eos", "--json")
    assert answer.json["metrics"]["drafted_tokens"] > 0


def test_the_same_command_goes_on_where_it_stopped(run, world, recipe, tmp_path):
    arguments = ("train", recipe, "-o", tmp_path / "run", "-t", world / "target")
    assert run(*arguments).status == 0
    outcome = run(*arguments, "--set", "optimiser.total_steps=3")
    assert outcome.status == 0
    assert "step 3 (finished)" in outcome.out
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 3


def test_what_a_run_leaves_to_look_at(run, world, recipe, tmp_path):
    """Decoding is measured, the best drafter loads, the curves are drawn, and drawn again by `inspect`."""
    directory = tmp_path / "run"
    options = ("--set", "evaluation.on_policy_tokens=6", "--set", "evaluation.every_steps=1")
    report = run("train", recipe, "-o", directory, "-t", world / "target", *options, "--json").json
    assert report["on_policy"]["texts"] == 1
    assert report["best"]["tau"] >= report["on_policy"]["tau"] >= 1
    assert report["skipped_steps"] == 0
    assert (directory / "curves.png").is_file()
    inspected = run("inspect", report["best"]["drafter"], "--json").json
    assert inspected["training"]["on_policy_tau"] == pytest.approx(report["best"]["tau"], abs=1e-4)
    drawn = run("inspect", directory, "--curves", tmp_path / "again.png", "--json").json
    assert (drawn["step"], drawn["best_tau"]) == (2, report["best"]["tau"])
    assert (tmp_path / "again.png").read_bytes()[1:4] == b"PNG"


def test_curves_of_no_run_are_refused(run, world, tmp_path):
    run("inspect", world / "target", "--curves", tmp_path / "x.png").refused("metrics.jsonl", "dspark train")


def test_a_dashboard_that_is_not_installed_is_refused_at_once(run, world, recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    arguments = ("train", recipe, "-o", tmp_path / "run", "-t", world / "target")
    run(*arguments, "--log", "trackio").refused("trackio", "pip install 'dspark[trackio]'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimiser.total_step=3", ["total_step", "did you mean 'total_steps'"]),
        ("seed", ["seed", "="]),
        ("target=other", ["other"]),
        ("data.answers=nowhere.jsonl", ["nowhere.jsonl"]),
    ],
)
def test_bad_recipes_are_refused(run, world, recipe, tmp_path, override, words):
    options = ("-o", tmp_path / "run", "-t", world / "target", "--set", override)
    run("train", recipe, *options).refused(*words)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"response_ids": [9999] * 20}, ["line 5", "token 9999", "[0, 259)", "regenerate"]),
        ({"template_hash": "0123"}, ["line 5", "template 0123", "regenerate"]),
        ({"prompt_ids": "ABC"}, ["line 5", "prompt_ids"]),
    ],
)
def test_answers_that_do_not_fit_are_refused_by_line(run, world, recipe, tmp_path, row, words):
    answers = tmp_path / "answers.jsonl"
    first = answers.read_text().splitlines()[0]
    answers.write_text(answers.read_text() + json.dumps(json.loads(first) | row) + "\n")
    run("train", recipe, "-o", tmp_path / "run", "-t", world / "target").refused("answers.jsonl", *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("taps", ["[0,3]", "[-2,1]", "[0,99]"])
def test_taps_out_of_range_are_refused(run, world, recipe, tmp_path, taps):
    options = ("-o", tmp_path / "run", "-t", world / "target", "--set", f"drafter.target_layer_ids={taps}")
    run("train", recipe, *options).refused("target_layer_ids", "[-1, 2]", "4 layers")


def test_a_disk_that_fills_up_costs_nothing_that_was_saved(run, world, recipe, tmp_path, monkeypatch):
    """The state cannot be written: one line, status 1; with room again, the run ends as if nothing had been."""
    options = ("-t", world / "target", "--set", "evaluation.on_policy_answers=0")
    whole = ("train", recipe, "-o", tmp_path / "whole", *options)
    arguments = ("train", recipe, "-o", tmp_path / "run", *options)
    assert run(*whole, "--set", "optimiser.total_steps=3").status == 0
    assert run(*arguments).status == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run" / "state").iterdir()}

    def full(*arguments):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("dspark.training.state.save_file", full)
        outcome = run(*arguments, "--set", "optimiser.total_steps=3")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.endswith("state: No space left on device; make room, and run the same command again\n")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run" / "state").iterdir()} == before
    assert run(*arguments, "--set", "optimiser.total_steps=3").status == 0
    drafters = [(tmp_path / name / "drafter" / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert drafters[0] == drafters[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_log_that_cannot_be_written_is_named(run, world, recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to("/dev/full")
    outcome = run("train", recipe, "-o", tmp_path / "run", "-t", world / "target")
    assert (outcome.status, outcome.out) == (1, "")
    assert "metrics.jsonl: No space left on device" in outcome.err


def test_a_missing_recipe_is_refused(run, tmp_path):
    run("train", tmp_path / "recipe.yaml", "-o", tmp_path / "run").refused("recipe.yaml")


def test_estimates_come_before_anything_starts(run, world, recipe):
    options = ("-t", world / "target", "--price-per-hour", 2)
    measured = run("data", "estimate", recipe, *options, "--measure", 2, "--json")
    assert (measured.status, measured.err) == (0, "")
    given = run("data", "estimate", recipe, *options, "--flops", 1e9, "--json").json
    for report in (measured.json, given):
        assert (report["answers"], report["positions"], report["response_positions"]) == (3, 99, 90)
        choices = report["choices"]
        assert choices["online"]["bytes"] == 0 < choices["store fp8"]["bytes"] < choices["store bf16"]["bytes"]
        assert choices["online"]["price"] == pytest.approx(2 * choices["online"]["target_hours"])
    assert "store fp8" in run("data", "estimate", recipe, *options, "--flops", 1e9).out
    run("data", "estimate", recipe, "--flops", 1e9, "-t", "nowhere").refused("nowhere")


def test_a_server_that_is_none_is_refused(run, world, recipe, tmp_path):
    pytest.importorskip("httpx2", reason="needs the extra `data`")
    options = ("-o", tmp_path / "run", "-t", world / "target", "--states", "localhost")
    run("train", recipe, *options).refused("localhost", "http")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_exported_and_continued(run, world, recipe, tmp_path, number):
    """Interrupted as from a shell, in a process of its own; the resumed run neither repeats nor skips a step."""
    directory, log = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    arguments = ["train", str(recipe), "-o", str(directory), "-t", str(world / "target")]
    endless = [sys.executable, "-m", "dspark", *arguments, "--set", "optimiser.total_steps=1000000"]
    with subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 240
            while steps_in(log) < 3 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    stopped = steps_in(log)
    assert f"step {stopped} (stopped; the same command goes on from here)" in out
    assert read_state(directory / "state").step == stopped >= 3
    assert run("inspect", directory / "drafter", "--json").json["training"]["steps"] == stopped

    outcome = run(*arguments, "--set", f"optimiser.total_steps={stopped + 2}")
    assert outcome.status == 0, outcome.err
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == list(range(1, stopped + 3))


def steps_in(log):
    return log.read_text().count("\n") if log.exists() else 0


@pytest.mark.slow
def test_torchrun_shares_a_training_and_keeps_the_target_apart(world, recipe, tmp_path):
    """Two trainers and a process for the target: one report, one log, a drafter that loads."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")
    verb = ("-m", "dspark", "train", recipe, "-o", tmp_path / "run", "-t", world / "target", "--target-ranks", "1")
    settings = ("--set", "data.answers_per_step=2", "--set", "evaluation.on_policy_tokens=4", "--json")
    done = subprocess.run([*launcher, *verb, *settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["step"], report["finished"]) == (2, True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2
    assert len(list((tmp_path / "run" / "state").glob("*.safetensors"))) == 2
