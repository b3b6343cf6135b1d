"""The grid's bookkeeping: curricula keep their shares, and every figure stands at the temperature that it is of."""

import argparse
from pathlib import Path

from benchmarks.embedded_drafters import curriculum, entry, feature_flags, table
from dspark.training.recipe import read_recipe
from dspark.training.setup import taps_of

RECIPE = Path("recipes/smollm2-135m-dspark.yaml")


def row(drafter: str, temperature: float, tau: float) -> dict:
    figures = {"mean_tau": tau, "mean_tau_ci95": [tau - 0.1, tau + 0.1], "sets": {"gsm8k": {"tau": tau + 1}}}
    return {"drafter": drafter, "temperature": temperature, **figures}


def test_blocks_begin_after_the_same_share_of_the_steps():
    recipe = read_recipe(RECIPE)
    found = curriculum(recipe, recipe.optimiser.total_steps // 2)
    assert [block["size"] for block in found] == [block.size for block in recipe.blocks]
    assert [block["from_step"] for block in found] == [round(block.from_step / 2) for block in recipe.blocks]


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


def test_figures_stand_at_their_temperature_and_drafter():
    rows = [row("A", 0.0, 2.0), row("A", 1.0, 1.5), row("B", 0.0, 1.8), row("B", 1.0, 1.4)]
    args = argparse.Namespace(recipe=[("A", Path("a.yaml")), ("B", RECIPE)])
    found = entry(args, "B", {"step": 7, "parameters": 2_500_000}, rows)
    assert (found["mean_tau"], found["tau"]) == (1.8, {"gsm8k": 2.8})
    assert found["at_temperature_1"]["mean_tau"] == 1.4
    assert found["recipe"] == RECIPE.name
    assert table({"B": found}).splitlines()[-1] == "| B | 7 | 2.5 M | 1.80 ± 0.10 | 1.40 ± 0.10 |"
