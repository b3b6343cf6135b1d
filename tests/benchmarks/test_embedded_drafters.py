"""The grid's bookkeeping: curricula keep their shares, and every figure stands at the temperature that it is of."""

import argparse
from pathlib import Path

from benchmarks.embedded_drafters import curriculum, entry, table
from dspark.training.recipe import read_recipe

RECIPE = Path("recipes/smollm2-135m-dspark.yaml")


def row(drafter: str, temperature: float, tau: float) -> dict:
    figures = {"mean_tau": tau, "mean_tau_ci95": [tau - 0.1, tau + 0.1], "sets": {"gsm8k": {"tau": tau + 1}}}
    return {"drafter": drafter, "temperature": temperature, **figures}


def test_blocks_begin_after_the_same_share_of_the_steps():
    recipe = read_recipe(RECIPE)
    found = curriculum(recipe, recipe.optimiser.total_steps // 2)
    assert [block["size"] for block in found] == [block.size for block in recipe.blocks]
    assert [block["from_step"] for block in found] == [round(block.from_step / 2) for block in recipe.blocks]


def test_figures_stand_at_their_temperature_and_drafter():
    rows = [row("A", 0.0, 2.0), row("A", 1.0, 1.5), row("B", 0.0, 1.8), row("B", 1.0, 1.4)]
    args = argparse.Namespace(recipe=[("A", Path("a.yaml")), ("B", RECIPE)])
    found = entry(args, "B", {"step": 7, "parameters": 2_500_000}, rows)
    assert (found["mean_tau"], found["tau"]) == (1.8, {"gsm8k": 2.8})
    assert found["at_temperature_1"]["mean_tau"] == 1.4
    assert found["recipe"] == RECIPE.name
    assert table({"B": found}).splitlines()[-1] == "| B | 7 | 2.5 M | 1.80 ± 0.10 | 1.40 ± 0.10 |"
