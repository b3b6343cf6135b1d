"""`dspark train`: a recipe in, a drafter directory out."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import console
from dspark.cli.options import JsonOption, examples
from dspark.cli.runner import INTERRUPTED
from dspark.cli.served_states import StatesDirOption, StatesModelOption, StatesOption, served_states
from dspark.cli.session import open_native_target, open_trainable_target
from dspark.cli.training_bar import training_bar

if TYPE_CHECKING:
    from dspark.training.progress import Progress
    from dspark.training.run import TrainReport


class Dashboard(StrEnum):
    """What a run can be shown in, beside its own log."""

    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"


EPILOG = examples(
    "dspark train recipes/smollm2-135m-dspark.yaml --output runs/dspark",
    "dspark train recipe.yaml --output runs/long --set optimiser.total_steps=20000",
    "dspark train recipe.yaml --output runs/dspark --features runs/features --json",
    "torchrun --nproc-per-node 3 -m dspark train recipe.yaml --output runs/dspark --target-ranks 1",
    "dspark train recipe.yaml --output runs/dspark --features runs/features --states http://localhost:8000",
    "dspark train recipe.yaml --output runs/dspark --log tensorboard --set evaluation.patience=10",
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
    log: Annotated[
        list[Dashboard] | None,
        typer.Option("--log", help="Also show the run in this; may be given again.", show_default=False),
    ] = None,
    target_ranks: Annotated[
        int,
        typer.Option(
            "--target-ranks", metavar="N", min=0, help="How many of torchrun's processes run the target for the others."
        ),
    ] = 0,
    states: StatesOption = None,
    states_model: StatesModelOption = None,
    states_dir: StatesDirOption = None,
    json: JsonOption = False,
) -> None:
    """Train a drafter for a target. Ctrl-C saves the state; the same command goes on from there.

    DIR gets the drafter of the last step, the best one (best/), metrics.jsonl and curves.png. Started by torchrun, the
    processes share the drafter's training.
    """
    from dspark.nn.kernel_choice import resolve_precision, sequence_kernel
    from dspark.training.curves import draw_run
    from dspark.training.job import take_part
    from dspark.training.placement import joined
    from dspark.training.recipe import read_recipe
    from dspark.training.watchers import open_watchers

    plan = read_recipe(recipe, tuple(overrides or ()))
    with joined(target_ranks) as placement:
        quiet = json or not placement.leads
        watchers = open_watchers(log or (), output) if placement.leads else ()
        with console.status(f"Loading {plan.target} ...", quiet=quiet):
            name, kernel = target or plan.target, sequence_kernel(resolve_precision(plan.precision))
            if states is None:
                model, source = open_trainable_target(name, kernel), None
            else:
                model = open_native_target(name, kernel)
                source = served_states(model, plan, states, states_model, states_dir)
        with training_bar(quiet=quiet) as show:

            def watch(progress: "Progress") -> None:
                for each in (show, *watchers):
                    each(progress)

            report = take_part(placement, plan, model, output, features, watch=watch, source=source)
        if placement.leads and report is not None:
            _tell(report, draw_run(output), json)
    if report is not None and not report.finished:
        raise typer.Exit(INTERRUPTED)


def _tell(report: "TrainReport", picture: Path | None, json: bool) -> None:
    if json:
        console.print_json({**report.as_json(), "curves": picture})
    else:
        console.print_text(_outcome(report), end="\n")
        console.note(str(picture) if picture else "no curves.png: it needs matplotlib (pip install 'dspark[plots]')")


def _outcome(report: "TrainReport") -> str:
    state = "finished" if report.finished else "stopped; the same command goes on from here"
    state = "stopped early, without progress" if report.stopped_early else state
    lines = [f"{report.drafter_directory}: step {report.step} ({state}){_figures(report)}"]
    if report.best_directory is not None:
        lines.append(
            f"{report.best_directory}: step {report.best.step}, the best accepted length {report.best.tau:.3f}"
        )
    if report.skipped_steps:
        lines.append(f"{report.skipped_steps} steps were not finite and changed nothing")
    return "\n".join(lines)


def _figures(report: "TrainReport") -> str:
    figures = "" if report.on_policy is None else f", tau {report.on_policy.tau:.3f} decoding held-out prompts"
    return figures + ("" if report.held_out is None else f", {report.held_out.tau:.3f} teacher-forced")
