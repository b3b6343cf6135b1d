"""`dspark data estimate`: what features will take, before anything starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import console
from dspark.cli.options import JsonOption, examples

if TYPE_CHECKING:
    from dspark.data.answers import Answer
    from dspark.training.estimate import Estimate
    from dspark.training.recipe import Recipe

EPILOG = examples(
    "dspark data estimate recipes/smollm2-135m-dspark.yaml",
    "dspark data estimate recipe.yaml --target Qwen/Qwen3-8B --flops 3e14 --price-per-hour 2.5",
    "dspark data estimate recipe.yaml --measure 16 --json",
)


def estimate(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML recipe.", show_default=False)],
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
    measure: Annotated[
        int, typer.Option("--measure", metavar="N", min=1, help="Time the target on N answers, here and now.")
    ] = 4,
    flops: Annotated[
        float | None,
        typer.Option(
            "--flops",
            metavar="F",
            min=1.0,
            help="Operations per second that the target will sustain elsewhere; nothing is timed or loaded.",
            show_default=False,
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option("--price-per-hour", metavar="P", min=0.0, help="In any currency.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say how many positions a recipe trains on, how large their features are, and how long the target will run.

    Three choices: the target runs in every step (nothing is stored), or once with `dspark train --features DIR`, in
    bfloat16 or fp8 (`data.feature_precision`). The drafter's own steps come on top.
    """
    from dspark.data.answers import read_answers, split_answers
    from dspark.training.estimate import estimate as estimated
    from dspark.training.recipe import read_recipe

    plan = read_recipe(recipe, tuple(overrides or ()))
    data = plan.data
    answers = read_answers(data.answers, max_temperature=data.max_temperature, max_length=data.max_length)
    train = split_answers(answers, data.held_out).train
    plan = plan.settled(len(train))
    width, seconds, speed = _speed(plan, target or plan.target, train, measure, flops, json)
    result = estimated(plan, train, width, seconds, speed, price_per_hour)
    if json:
        console.print_json(result.as_json())
    else:
        _print(result)


def _speed(
    plan: "Recipe", target: str, train: "tuple[Answer, ...]", measure: int, flops: float | None, quiet: bool
) -> tuple[int, float, str]:
    """The target's width, its seconds a position, and where they come from."""
    from dspark.training.estimate import DataSize, forward_flops, measured_seconds

    if flops is not None:
        from dspark.targets.registry import load_config

        sizes, data = load_config(target), DataSize.of(train)
        return (
            sizes.hidden_size,
            forward_flops(sizes, data) / flops / data.positions,
            f"{flops:.3g} operations/s, given",
        )
    from dspark.cli.session import open_native_target
    from dspark.nn.kernel_choice import resolve_precision, sequence_kernel
    from dspark.training.setup import teacher_of

    with console.status(f"Timing {target} ...", quiet=quiet):
        model = open_native_target(target, sequence_kernel(resolve_precision(plan.precision)))
        chosen = train[:measure]
        seconds = measured_seconds(teacher_of(plan, model, None), chosen, plan.data.answers_per_step)
    return model.info.hidden_size, seconds, f"measured here on {len(chosen)} answers"


def _print(result: "Estimate") -> None:
    data = result.data
    title = f"{data.answers} answers, {data.positions} positions ({data.responses} of responses)"
    headers = ("features", "on disk", "target runs over", "hours", "price")
    table = console.table(f"{title}, {result.epochs:.2f} epochs", *headers)
    for choice in result.choices:
        price = "" if choice.price is None else f"{choice.price:.2f}"
        table.add_row(
            choice.name, gigabytes(choice.bytes), str(choice.target_positions), f"{choice.target_hours:.3g}", price
        )
    console.print_table(table)
    console.print_text(
        f"{1 / result.seconds_per_position:.0f} positions/s: {result.speed}. The drafter comes on top.", "\n"
    )


def gigabytes(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e12:.2f} TB" if count >= 1e12 else f"{count / 1e9:.2f} GB"
