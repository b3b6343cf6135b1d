"""Trains one drafter a recipe at equal data and equal optimiser steps, and compares their accepted lengths.

    python benchmarks/embedded_drafters.py PROMPTS --work runs/grid --steps 1000 \
        --recipe DSpark=recipes/smollm2-135m-dspark.yaml --recipe DFlash=recipes/smollm2-135m-dflash.yaml

Every training and every evaluation resumes where it was interrupted: the same command goes on. `--set` goes to every
recipe, `--cooldown` is the share of the steps that cool down, and block curricula are scaled to the steps. Writes
docs/results/embedded_drafters.json and prints a table; figures with a T are of that temperature.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dspark.training.recipe import Recipe, read_recipe

TEMPERATURES = (0.0, 1.0)


def main() -> None:
    """Train, evaluate, write, print."""
    args = arguments()
    trained = {name: train(args, name, recipe) for name, recipe in args.recipe}
    rows = evaluate(args, {name: Path(report["drafter"]) for name, report in trained.items()})
    drafters = {name: entry(args, name, report, rows) for name, report in trained.items()}
    settings = {"steps": args.steps, "prompts": args.prompts, "overrides": args.set}
    args.json.write_text(json.dumps({"settings": settings, "drafters": drafters}, indent=1) + "\n", encoding="utf-8")
    print(table(drafters))


def train(args: argparse.Namespace, name: str, path: Path) -> dict[str, Any]:
    """What `dspark train --json` reports of one recipe at the grid's length."""
    recipe = read_recipe(path, tuple(args.set))
    lengths = [
        f"optimiser.total_steps={args.steps}",
        f"optimiser.cooldown_steps={round(args.steps * args.cooldown)}",
        f"blocks={json.dumps(curriculum(recipe, args.steps))}",
    ]
    overrides = [part for setting in (*args.set, *lengths) for part in ("--set", setting)]
    command = [sys.executable, "-m", "dspark", "train", str(path), "-o", str(args.work / name)]
    command += [*overrides, *feature_flags(args.features, recipe)]
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


def evaluate(args: argparse.Namespace, directories: dict[str, Path]) -> list[dict[str, Any]]:
    """The rows of `tau_table.py`, drafter by temperature."""
    found = args.work / "tau.json"
    arms = [part for name, directory in directories.items() for part in ("--drafter", f"{name}={directory}")]
    temperatures = [part for t in TEMPERATURES for part in ("--temperature", f"{t:g}")]
    command = [sys.executable, str(Path(__file__).with_name("tau_table.py")), str(args.sets), *arms, *temperatures]
    places = ["--texts", str(args.texts), "--work", str(args.work / "tau"), "--json", str(found)]
    subprocess.run([*command, "--prompts", str(args.prompts), *places], check=True, stdout=sys.stderr)
    rows: list[dict[str, Any]] = json.loads(found.read_text(encoding="utf-8"))["rows"]
    return rows


def entry(args: argparse.Namespace, name: str, report: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One drafter of the published grid: figures at T = 0, those at T = 1 beside them."""
    greedy, sampled = (
        next(row for row in rows if row["drafter"] == name and row["temperature"] == t) for t in TEMPERATURES
    )
    return {
        **accepted_lengths(greedy),
        "at_temperature_1": accepted_lengths(sampled),
        "steps": report["step"],
        "parameters": report["parameters"],
        "recipe": dict(args.recipe)[name].name,
    }


def accepted_lengths(row: dict[str, Any]) -> dict[str, Any]:
    """Mean, interval and every set of one evaluation."""
    return {
        "mean_tau": row["mean_tau"],
        "ci95": row["mean_tau_ci95"],
        "tau": {name: one["tau"] for name, one in row["sets"].items()},
    }


def table(drafters: dict[str, dict[str, Any]]) -> str:
    """Mean tau with half its 95 % interval, at both temperatures."""
    lines = ["| drafter | steps | parameters | T = 0 | T = 1 |", "| --- | --- | --- | --- | --- |"]
    for name, one in drafters.items():
        greedy, sampled = map(interval, (one, one["at_temperature_1"]))
        lines.append(f"| {name} | {one['steps']} | {one['parameters'] / 1e6:.1f} M | {greedy} | {sampled} |")
    return "\n".join(lines)


def interval(figures: dict[str, Any]) -> str:
    """Mean tau with half the width of its 95 % interval."""
    low, high = figures["ci95"]
    return f"{figures['mean_tau']:.2f} ± {(high - low) / 2:.2f}"


def named_path(text: str) -> tuple[str, Path]:
    """NAME=FILE."""
    name, _, path = text.partition("=")
    return name, Path(path)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, help="a directory of JSONL prompt sets")
    parser.add_argument("--recipe", action="append", type=named_path, required=True, metavar="NAME=YAML")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--cooldown", type=float, default=0.35, help="share of the steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every recipe")
    parser.add_argument("--features", type=Path, metavar="DIR", help="teacher records, a directory an algorithm")
    parser.add_argument("--prompts", type=int, default=24, help="prompts of each set")
    parser.add_argument("--work", type=Path, default=Path("runs/grid"))
    parser.add_argument("--texts", type=Path, default=Path("runs/texts"))
    parser.add_argument("--json", type=Path, default=Path("docs/results/embedded_drafters.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
