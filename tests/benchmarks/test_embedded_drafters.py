"""The grid's bookkeeping: curricula keep their shares, and every figure stands at the temperature that it is of."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.drafter_grid import entry, published, save_figure, table, training
from benchmarks.embedded_drafters import Contender, curriculum, feature_flags, grid_entry
from benchmarks.markers import replaced
from dspark.training.metrics_log import MetricsLog
from dspark.training.recipe import read_recipe
from dspark.training.setup import taps_of

RECIPE = Path("recipes/smollm2-135m-dspark.yaml")
REPORT = {"step": 7, "parameters": 2_500_000}
LOG = [
    {"step": 1, "seconds": 20.0, "held_out": None},
    {"step": 2, "seconds": 100.0, "held_out": {"tau": 1.2, "loss": 3.0, "acceptance": [0.2]}},
]


def row(drafter: str, temperature: float, tau: float) -> dict:
    figures = {"mean_tau": tau, "mean_tau_ci95": [tau - 0.1, tau + 0.1], "sets": {"gsm8k": {"tau": tau + 1}}}
    return {"drafter": drafter, "temperature": temperature, **figures}


ROWS = [row("A", 0.0, 2.0), row("A", 1.0, 1.5), row("B", 0.0, 1.8), row("B", 1.0, 1.4)]
QUOTIENTS = [
    {"drafter": "A", "over": "B", "temperature": 0.0, "quotient": 1.11, "ci95": [1.05, 1.2]},
    {"drafter": "A", "over": "B", "temperature": 1.0, "quotient": 1.07, "ci95": [1.01, 1.1]},
]


def log(directory: Path) -> Path:
    directory.mkdir()
    for line in LOG:
        MetricsLog(directory).append(line)
    return directory


def test_blocks_begin_after_the_same_share_of_the_steps():
    recipe = read_recipe(RECIPE)
    found = curriculum(recipe, recipe.optimiser.total_steps // 2)
    assert [block["size"] for block in found] == [block.size for block in recipe.blocks]
    assert [block["from_step"] for block in found] == [round(block.from_step / 2) for block in recipe.blocks]


def test_recipes_train_whole_blocks_in_the_last_tenth_of_their_steps():
    """Drafters are compared at equal steps, so none may see whole blocks for a larger share of them."""
    for path in Path("recipes").glob("smollm2-135m-*.yaml"):
        recipe = read_recipe(path)
        if recipe.blocks:
            assert recipe.blocks[-1].from_step == pytest.approx(0.9 * recipe.optimiser.total_steps), path


def test_recipes_that_share_a_directory_of_features_agree_on_what_it_holds():
    """A store knows one teacher: recipes of other taps there would be refused in the middle of a grid."""
    recipes = [read_recipe(path) for path in sorted(Path("recipes").glob("smollm2-135m-*.yaml"))]
    taps: dict[str, set] = {}
    for recipe in recipes:
        directory = feature_flags(Path("features"), recipe)[1]
        taps.setdefault(directory, set()).add(taps_of(recipe))
    assert len(taps) > 1
    assert all(len(found) == 1 for found in taps.values()), taps
    assert feature_flags(None, recipes[0]) == []


def test_a_drafter_may_have_settings_of_its_own():
    cold = Contender.parse("Eagle3, cold=recipes/smollm2-135m-eagle3.yaml;drafter.warm_start=false")
    assert (cold.name, cold.recipe.name) == ("Eagle3, cold", "smollm2-135m-eagle3.yaml")
    settings = cold.settings(argparse.Namespace(set=["precision=fp32"], steps=100, cooldown=0.35))
    recipe = read_recipe(cold.recipe, tuple(settings))
    assert (recipe.drafter.warm_start, recipe.precision) == (False, "fp32")
    assert (recipe.optimiser.total_steps, recipe.optimiser.cooldown_steps) == (100, 35)


def test_figures_stand_at_their_temperature_and_drafter():
    found = entry("B", REPORT, ROWS)
    assert (found["mean_tau"], found["tau"], found["steps"]) == (1.8, {"gsm8k": 2.8}, 7)
    assert found["at_temperature_1"]["mean_tau"] == 1.4


def test_an_entry_tells_how_it_was_trained_and_no_paths(tmp_path: Path):
    log(tmp_path / "B")
    args = argparse.Namespace(work=tmp_path, set=["data.answers=/home/me/a.jsonl.gz"], steps=100, cooldown=0.1)
    found = grid_entry(args, Contender("B", RECIPE), REPORT, ROWS)
    assert found["recipe"] == RECIPE.name
    assert found["overrides"][0] == "data.answers=a.jsonl.gz"
    assert (found["training_seconds"], found["held_out"]) == (120.0, [{"step": 2, "tau": 1.2, "loss": 3.0}])
    assert "/" not in json.dumps(found)


def test_settings_that_are_no_paths_are_published_as_they_are():
    settings = ["blocks=[{from_step: 0, size: 3}]", "loss.decay=4", "data.answers=../a/b.jsonl"]
    assert published(settings) == [*settings[:2], "data.answers=b.jsonl"]


def test_the_table_holds_the_first_drafter_against_every_other(tmp_path: Path):
    drafters = {name: {**entry(name, REPORT, ROWS), **training(log(tmp_path / name))} for name in "AB"}
    header, _, first, second = table(drafters, QUOTIENTS).splitlines()
    assert header.endswith("| A / it, T = 0 | A / it, T = 1 |")
    assert first == "| A | 7 | 2 | 2.5 M | 2.00 ± 0.10 | 1.50 ± 0.10 |  |  |"
    assert second == "| B | 7 | 2 | 2.5 M | 1.80 ± 0.10 | 1.40 ± 0.10 | 1.11 (1.05 to 1.20) | 1.07 (1.01 to 1.10) |"
    assert table(drafters).splitlines()[-1].endswith("1.40 ± 0.10 |")


def test_the_figure_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    drafters = {name: {**entry(name, REPORT, ROWS), **training(log(tmp_path / name))} for name in "AB"}
    save_figure(tmp_path / "grid.png", drafters)
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_put_between_its_own_markers_alone():
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\nkept\n<!-- y: end -->\n"
    once = replaced(text, "x", "| new |")
    assert once == text.replace("old", "| new |")
    assert replaced(once, "x", "| new |") == once
    with pytest.raises(ValueError, match="z: begin"):
        replaced(text, "z", "")
