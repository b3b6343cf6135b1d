"""Trains one drafter a recipe at equal data and equal optimiser steps, and compares their accepted lengths.

    python -m benchmarks.embedded_drafters PROMPTS --work runs/grid --steps 1000 --doc docs/algorithms.md \
        --recipe DSpark=recipes/smollm2-135m-dspark.yaml --recipe DFlash=recipes/smollm2-135m-dflash.yaml \
        --recipe 'Eagle3, warm=recipes/smollm2-135m-eagle3.yaml;drafter.warm_start=true'

Every training and every evaluation resumes where it was interrupted: the same command goes on. `--set` goes to every
recipe, `KEY=VALUE` behind a recipe's file to that one, `--cooldown` is the share of the steps that cool down, and block
curricula are scaled to the steps. Prints a table, writes docs/results/embedded_drafters.json and .png: accepted lengths
at T = 0 and T = 1, the first drafter's over each other one's, by bootstrap over pairs of prompts, and how each training
went. `--doc` also puts the table between the markers of a document.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.drafter_grid import TEMPERATURES, entry, published, save_figure, table, training
from benchmarks.markers import rewrite
from dspark.figures import load_matplotlib
from dspark.training.recipe import Recipe, read_recipe


@dataclass(frozen=True, slots=True)
class Contender:
    """A drafter's name, its recipe, and what is set for it alone."""

    name: str
    recipe: Path
    overrides: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Contender":
        """NAME=FILE[;KEY=VALUE ...]."""
        name, _, rest = text.partition("=")
        path, *overrides = rest.split(";")
        return cls(name, Path(path), tuple(overrides))

    def settings(self, args: argparse.Namespace) -> list[str]:
        """All overrides of its recipe, the grid's length included."""
        own = [*args.set, *self.overrides]
        recipe = read_recipe(self.recipe, tuple(own))
        return [
            *own,
            f"optimiser.total_steps={args.steps}",
            f"optimiser.cooldown_steps={round(args.steps * args.cooldown)}",
            f"blocks={json.dumps(curriculum(recipe, args.steps))}",
        ]


def main() -> None:
    """Train, evaluate, write, print."""
    args = arguments()
    load_matplotlib()
    reports = {each.name: train(args, each) for each in args.recipe}
    found = evaluate(args, {name: Path(report["drafter"]) for name, report in reports.items()})
    drafters = {each.name: grid_entry(args, each, reports[each.name], found["rows"]) for each in args.recipe}
    settings = {"steps": args.steps, "prompts": args.prompts, "overrides": published(args.set)}
    grid = {"settings": settings, "drafters": drafters, "quotients": found["quotients"]}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(grid, indent=1) + "\n", encoding="utf-8")
    save_figure(args.plot, drafters)
    print(table(drafters, found["quotients"]))
    if args.doc is not None:
        rewrite(args.doc, "drafter grid", table(drafters, found["quotients"]))


def train(args: argparse.Namespace, contender: Contender) -> dict[str, Any]:
    """What `dspark train --json` reports of one recipe at the grid's length."""
    settings = contender.settings(args)
    overrides = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "dspark", "train", str(contender.recipe), "-o", str(args.work / contender.name)]
    command += [*overrides, *feature_flags(args.features, read_recipe(contender.recipe, tuple(settings)))]
    done = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def feature_flags(directory: Path | None, recipe: Recipe) -> list[str]:
    """Where `dspark train` keeps teacher records; a store holds one set of taps, which goes with the algorithm."""
    return [] if directory is None else ["--features", str(directory / recipe.algorithm)]


def curriculum(recipe: Recipe, steps: int) -> list[dict[str, int]]:
    """The recipe's block sizes, each beginning after the same share of the steps as in the recipe."""
    scale = steps / recipe.optimiser.total_steps
    return [{"from_step": round(block.from_step * scale), "size": block.size} for block in recipe.blocks]


def evaluate(args: argparse.Namespace, directories: dict[str, Path]) -> dict[str, Any]:
    """What `tau_table` writes: rows, drafter by temperature, and the first drafter's quotients."""
    found = args.work / "tau.json"
    arms = [part for name, directory in directories.items() for part in ("--drafter", f"{name}={directory}")]
    temperatures = [part for t in TEMPERATURES for part in ("--temperature", f"{t:g}")]
    command = [sys.executable, "-m", "benchmarks.tau_table", str(args.sets), *arms, *temperatures]
    places = ["--texts", str(args.texts), "--work", str(args.work / "tau"), "--json", str(found)]
    subprocess.run([*command, "--prompts", str(args.prompts), *places], check=True, stdout=sys.stderr)
    tables: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return tables


def grid_entry(
    args: argparse.Namespace, contender: Contender, report: dict[str, Any], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """One drafter of the published grid, with how it was trained."""
    how = {"recipe": contender.recipe.name, "overrides": published(contender.settings(args))}
    return {**entry(contender.name, report, rows), **how, **training(args.work / contender.name)}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, help="a directory of JSONL prompt sets")
    parser.add_argument(
        "--recipe", action="append", type=Contender.parse, required=True, metavar="NAME=YAML[;KEY=VALUE...]"
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--cooldown", type=float, default=0.35, help="share of the steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every recipe")
    parser.add_argument("--features", type=Path, metavar="DIR", help="teacher records, a directory an algorithm")
    parser.add_argument("--prompts", type=int, default=24, help="prompts of each set")
    parser.add_argument("--work", type=Path, default=Path("runs/grid"))
    parser.add_argument("--texts", type=Path, default=Path("runs/texts"))
    parser.add_argument("--json", type=Path, default=Path("docs/results/embedded_drafters.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/results/embedded_drafters.png"), metavar="PNG")
    parser.add_argument("--doc", type=Path, help="rewrite the table between the markers of this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
