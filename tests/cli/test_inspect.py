"""`dspark inspect` on a small drafter and on the recorded vectors."""

import pytest


def test_json_describes_the_drafter(run, world):
    outcome = run("inspect", world / "drafter", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    facts = outcome.json
    assert facts["gamma"] == 3
    assert facts["target"]["name"] == "target"
    assert "DSpark" in facts["kind"]


def test_the_table_shows_the_same(run, world):
    outcome = run("inspect", world / "drafter")
    assert outcome.status == 0
    assert "DSpark" in outcome.out
    assert "markov_rank" in outcome.out


@pytest.mark.parametrize("record", ["expected", "training"])
def test_parity_with_recorded_vectors(run, shared_dir, record):
    directory = shared_dir / "reference" / "golden" / "deepspec" / "dspark_vanilla"
    outcome = run("inspect", directory, "--parity", directory / f"{record}.safetensors", "--json")
    assert outcome.status == 0, outcome.err
    assert outcome.json["max_abs_error"] == max(outcome.json["tensors"].values()) <= 1e-4


@pytest.mark.parametrize(("path", "words"), [("nowhere", ["nowhere"]), ("target", ["target"])])
def test_what_is_no_drafter_is_refused(run, world, path, words):
    run("inspect", world / path).refused(*words)


def test_an_unreadable_record_is_refused(run, world, tmp_path):
    (tmp_path / "record.safetensors").write_bytes(b"nothing")
    options = ("--parity", tmp_path / "record.safetensors", "--target", world / "target")
    run("inspect", world / "drafter", *options).refused("record.safetensors")
