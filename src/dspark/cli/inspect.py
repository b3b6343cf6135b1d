"""`dspark inspect`: what a drafter directory holds, and whether it computes what was recorded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import console
from dspark.cli.options import JsonOption, examples
from dspark.cli.session import open_native_target
from dspark.cli.tree_rows import tree_rows

if TYPE_CHECKING:
    from rich.table import Table

    from dspark.drafters.description import DrafterDescription
    from dspark.drafters.parity import ParityReport

EPILOG = examples(
    "dspark inspect my-drafter",
    "dspark inspect my-drafter --json",
    "dspark inspect runs/dspark --curves curves.png",
    "dspark inspect golden/dspark --parity golden/dspark.safetensors --json",
)


def inspect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A drafter's, or a run's.", show_default=False)],
    parity_file: Annotated[
        Path | None,
        typer.Option(
            "--parity",
            metavar="FILE",
            help="Recompute the recorded tensors of this safetensors file.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="NAME",
            help="For --parity: the target that lends embedding and head, where the directory stores none.",
            show_default=False,
        ),
    ] = None,
    curves: Annotated[
        Path | None,
        typer.Option(
            "--curves", metavar="PNG", help="DIR is a training run: draw its curves here.", show_default=False
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Describe a drafter, compare it with recorded vectors of another implementation, or draw a training run."""
    if curves is not None:
        _draw(directory, curves, json)
        return
    if parity_file is None:
        from dspark.drafters.description import describe

        description = describe(directory)
        if json:
            console.print_json(description)
        else:
            console.print_table(_describe_table(directory, description))
        return
    from dspark.drafters.parity import parity

    with console.status("Recomputing ...", quiet=json):
        report = parity(directory, parity_file, None if target is None else open_native_target(target))
    if json:
        console.print_json({"max_abs_error": report.max_abs_error, "tensors": report.tensors})
    else:
        console.print_table(_parity_table(report))


def _draw(directory: Path, picture: Path, json: bool) -> None:
    from dspark.training.curves import TrainingCurves, save_curves

    drawn = TrainingCurves.read(directory)
    save_curves(drawn, picture, directory.resolve().name)
    if json:
        last, best = drawn.cpu_hours, drawn.best
        figures = {"step": last.steps[-1], "cpu_hours": last.y[-1], "best_step": best.step, "best_tau": best.tau}
        console.print_json({"curves": picture, **figures})
    else:
        console.print_text(f"{picture}: {drawn.cpu_hours.steps[-1]} steps", end="\n")


def _describe_table(directory: Path, description: "DrafterDescription") -> "Table":
    table = console.table(str(directory), "", "")
    table.add_row("kind", description.kind)
    table.add_row("made by", f"{description.producer} ({description.architecture})")
    table.add_row("layout", f"{description.layout}: {description.layout_reason}")
    table.add_row("gamma", str(description.gamma))
    table.add_row("own parameters", f"{description.parameters:,}")
    table.add_row("copied from target", f"{description.shared_parameters:,}")
    table.add_row("file", console.size(description.file_bytes))
    table.add_row("target", f"{description.target['name'] or 'not recorded'} {description.target['weights_hash'][:12]}")
    table.add_row("template", description.template_hash[:16] or "not recorded")
    sections = {"sizes": description.sizes, "training": description.training}
    for name, value in tree_rows({section: entries for section, entries in sections.items() if entries}):
        table.add_row(name, value)
    for note in description.notes:
        table.add_row("note", note)
    return table


def _parity_table(report: "ParityReport") -> "Table":
    table = console.table(f"Largest absolute error {report.max_abs_error:.2e}", "tensor", "error")
    for name, error in report.tensors.items():
        table.add_row(name, f"{error:.2e}")
    return table
