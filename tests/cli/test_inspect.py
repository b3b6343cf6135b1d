"""`dspark inspect` on a small drafter and on the recorded vectors."""

import json

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


def test_the_training_recipe_is_shown_setting_by_setting(run, world, tmp_path):
    config = json.loads((world / "drafter" / "config.json").read_text())
    blocks = [{"from_step": 0, "size": 2}, {"from_step": 9, "size": 3}]
    recipe = {"target": "target", "optimiser": {"learning_rate": 0.0006, "clip": 1.0}, "blocks": blocks, "note": None}
    config["dspark"]["training"] = {"steps": 20, "held_out_acceptance": [0.5, 0.25], "recipe": recipe}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(world / "drafter" / "model.safetensors")
    out = run("inspect", tmp_path).out
    assert not set("{}[]") & set(out), out
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    for row in (["steps", "20"], ["held_out_acceptance", "0.5 0.25"], ["learning_rate", "0.0006"], ["note", "-"]):
        assert row in [[cell.strip() for cell in line] for line in lines], out
    assert [line.strip() for line in out.splitlines() if "step 9" in line] == ["from_step 9, size 3"]


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
