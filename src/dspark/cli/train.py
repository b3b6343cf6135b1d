"""`dspark train`: a recipe in, a drafter directory out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import console
from dspark.cli.options import JsonOption, examples
from dspark.cli.runner import INTERRUPTED
from dspark.cli.session import open_native_target

if TYPE_CHECKING:
    from dspark.training.run import TrainReport
    from dspark.training.trainer import Progress

EPILOG = examples(
    "dspark train recipes/smollm2-135m-dspark.yaml --output runs/dspark",
    "dspark train recipe.yaml --output runs/long --set optimiser.total_steps=20000",
    "dspark train recipe.yaml --output runs/dspark --features runs/features --json",
)


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML recipe.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="State, metrics and the finished drafter.", show_default=False
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override section.key; may be given again.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="NAME", help="Where the recipe's target lies.", show_default=False),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option("--features", metavar="DIR", help="Keep the target's features here.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a drafter for a target. Ctrl-C saves the state; the same command goes on from there."""
    from dspark.nn.kernel_choice import sequence_kernel
    from dspark.training.recipe import read_recipe
    from dspark.training.run import train as run_training

    plan = read_recipe(recipe, tuple(overrides or ()))
    with console.status(f"Loading {plan.target} ...", quiet=json):
        model = open_native_target(target or plan.target, sequence_kernel(plan.precision))
    with console.progress("Training", plan.optimiser.total_steps, quiet=json) as bar:

        def watch(progress: "Progress") -> None:
            bar.show(progress.step, f"loss {progress.result.loss:.3f}, tau {progress.result.tau:.2f}")

        report = run_training(plan, model, output, features, watch=watch)
    if json:
        console.print_json(report.as_json())
    else:
        console.print_text(_outcome(report), end="\n")
    if not report.finished:
        raise typer.Exit(INTERRUPTED)


def _outcome(report: "TrainReport") -> str:
    state = "finished" if report.finished else "stopped; the same command goes on from here"
    figures = "" if report.held_out is None else f", tau {report.held_out.tau:.3f} on held-out answers"
    return f"{report.drafter_directory}: step {report.step} ({state}){figures}"
