"""`dspark eval` on a small model."""

import json

import pytest


@pytest.fixture
def prompts(tmp_path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name, count in (("math", 3), ("chat", 2)):
        rows = [{"id": f"{name}-{i}", "domain": name, "turns": [f"{i}?", "More."][: 1 + i % 2]} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def arguments(world, prompts):
    return ("eval", prompts, "-t", world / "target", "-d", world / "drafter", "-n", 8)


def test_json_has_the_agreed_shape(run, world, prompts):
    outcome = run(*arguments(world, prompts), "--json")
    assert (outcome.status, outcome.err) == (0, "")
    report = outcome.json
    assert set(report["sets"]) == {"math", "chat"}
    math = report["sets"]["math"]
    assert set(math) >= {"tau", "tau_ci95", "prompts", "acceptance_by_position", "rounds"}
    assert math["prompts"] == 3
    assert math["tau_ci95"][0] <= math["tau"] <= math["tau_ci95"][1]
    assert report["mean_tau"] == pytest.approx(sum(one["tau"] for one in report["sets"].values()) / 2)


def test_the_table_names_sets_and_tau(run, world, prompts):
    outcome = run(*arguments(world, prompts), "--limit", 1)
    assert outcome.status == 0
    assert "math" in outcome.out
    assert "Mean tau" in outcome.out


def test_a_journal_lets_a_second_run_decode_nothing(run, world, prompts, tmp_path):
    journal = tmp_path / "journal.jsonl"
    first = run(*arguments(world, prompts), "--journal", journal, "--json").json
    lines = journal.read_text()
    assert run(*arguments(world, prompts), "--journal", journal, "--json").json == first
    assert journal.read_text() == lines


def test_a_journal_of_other_settings_is_refused(run, world, prompts, tmp_path):
    journal = tmp_path / "journal.jsonl"
    assert run(*arguments(world, prompts), "--journal", journal, "--json").status == 0
    run(*arguments(world, prompts), "--journal", journal, "-T", 1).refused("temperature", "journal.jsonl")


@pytest.mark.parametrize(
    ("text", "words"), [("", ["no prompts"]), ("{}\n", ["turns", "line 1"]), ("not json\n", ["line 1"])]
)
def test_bad_prompt_files_are_refused(run, world, tmp_path, text, words):
    (tmp_path / "bad.jsonl").write_text(text)
    run("eval", tmp_path / "bad.jsonl", "-t", world / "target").refused("bad.jsonl", *words)


def test_missing_files_and_empty_folders_are_refused(run, world, tmp_path):
    run("eval", tmp_path / "none.jsonl", "-t", world / "target").refused("none.jsonl")
    run("eval", tmp_path, "-t", world / "target").refused(str(tmp_path))


def test_plain_figures_are_not_mistaken_for_a_drafters(run, world, prompts):
    outcome = run("eval", prompts, "-t", world / "target", "-n", 4, "--limit", 1)
    assert outcome.status == 0
    assert "no drafter" in outcome.err.lower()
