"""`dspark bench` on a small model."""

import json

import pytest

from dspark.evaluation.bench.benchmark import Benchmark


@pytest.fixture
def prompts(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name, count in (("math", 3), ("chat", 2)):
        rows = [{"id": f"{name}-{i}", "domain": name, "turns": [f"{i}?"]} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def call(world, prompts, monkeypatch):
    """Small and quick: the cost profile is left out, as where steps are too slow for it."""
    monkeypatch.setattr("dspark.evaluation.bench.engines.start_profile", lambda models, requests: None)
    common = ("--requests", 3, "-n", 6, "--max-requests", 4)
    return ("bench", prompts, "-t", world / "target", "-d", world / "drafter", *common)


def test_json_has_the_agreed_shape_and_the_figure_is_drawn(run, call, tmp_path):
    arms = ("--arms", "plain,mtp-1,fixed", "--concurrency", "1,3")
    outcome = run(
        *call, *arms, "--ignore-eos", "--json", "--plot", tmp_path / "bench.png", "--steps", tmp_path / "steps"
    )
    assert (outcome.status, outcome.err) == (0, "")
    rows = outcome.json["rows"]
    assert [(row["arm"], row["concurrency"]) for row in rows] == [
        (arm, users) for users in (1, 3) for arm in ("plain", "mtp-1", "fixed")
    ]
    for row in rows:
        assert row["tokens_per_second"] > 0
        assert row["user_tokens_per_second_p50"] > 0
        assert row["requests"] == 3
        assert row["tau"] >= 1.0
        assert set(row["over"]) == {"plain", "mtp-1", "fixed"} - {row["arm"]}
    plain, mtp, fixed = rows[:3]
    assert plain["verified_per_request"] == plain["drafted_per_request"] == 0
    assert 0 < mtp["verified_per_request"] <= 1 < fixed["verified_per_request"] <= 3
    assert "first draft stands in" in outcome.json["notes"][-1]
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    steps = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
    assert len(steps) == sum(row["steps"] for row in rows)
    assert {"arm", "level", "repeat", "ended", "verified", "schedule_seconds"} <= {*steps[0]}


def test_an_open_loop_has_rates(run, call):
    outcome = run(*call, "--arms", "plain", "--rate", "50,200", "--variation", 2, "--json")
    assert [(row["load"], row["rate"], row["concurrency"]) for row in outcome.json["rows"]] == [
        ("bursty", 50.0, None),
        ("bursty", 200.0, None),
    ]


def test_the_table_names_arms_and_loads(run, call):
    outcome = run(*call, "--arms", "lagged", "--concurrency", 2, "--whole")
    assert outcome.status == 0
    assert "no cost table" in outcome.err
    for word in ("lagged", "total", "tau", "verified"):
        assert word in outcome.out


def test_interrupted_runs_are_reported_kept_and_not_made_again(run, call, tmp_path, monkeypatch):
    arguments = (*call, "--arms", "plain,fixed", "--concurrency", "1,2", "--journal", tmp_path / "runs.jsonl", "--json")
    real, made = Benchmark.run, []

    def interrupted(self, settings, watch):
        if made:
            raise KeyboardInterrupt
        made.extend(settings)
        return real(self, settings, watch)

    monkeypatch.setattr(Benchmark, "run", interrupted)
    first = run(*arguments)
    assert first.status == 130
    report = json.loads(first.out)
    assert {(row["arm"], row["concurrency"]) for row in report["rows"]} == {(one.arm, one.load.users) for one in made}
    assert report["finished"] is False
    monkeypatch.setattr(Benchmark, "run", real)
    second = run(*arguments)
    assert second.status == 0
    kept = [row for row in second.json["rows"] if row["concurrency"] == made[0].load.users]
    assert [row["tokens_per_second"] for row in kept] == [row["tokens_per_second"] for row in report["rows"]]
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 5
    run(*arguments, "--seed", 1).refused("another seed", "runs.jsonl")


def test_bad_input_is_refused(run, call, world, tmp_path):
    run(*call, "--arms", "laged").refused("laged", "did you mean 'lagged'")
    run(*call, "--concurrency", "1,x").refused("--concurrency", "1,x")
    run(*call, "--concurrency", 0).refused("concurrency is 0")
    run(*call, "--rate", -1).refused("rate", "-1")
    run(*call, "--rate", 1, "--variation", 0).refused("variation")
    run(*call, "--max-prompt-tokens", 1).refused("no prompts")
    run(*call, "--plot", tmp_path / "no" / "x.png").refused("x.png", "--plot")
    run("bench", tmp_path / "none.jsonl", "-t", world / "target").refused("none.jsonl")
    run("bench", call[1], "-t", world / "target", "--arms", "fixed", "-n", 6).refused("no drafter")
