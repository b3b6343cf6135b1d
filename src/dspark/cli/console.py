"""What a verb prints: results on stdout, everything else on stderr, and with `--json` one object on stdout alone."""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


def print_json(value: object) -> None:
    """One line of JSON on stdout. Dataclasses become objects; NaN and infinities, which JSON lacks, become null."""
    typer.echo(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def print_text(text: str, end: str = "") -> None:
    """Text on stdout, shown at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def note(text: str, quiet: bool = False) -> None:
    """A dim line on stderr, beside the result."""
    if not quiet:
        typer.secho(text, dim=True, err=True)


def print_table(*renderables: Any) -> None:
    """Rich tables or text on stdout, plain where stdout is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for renderable in renderables:
        console.print(renderable)


@contextmanager
def status(message: str, quiet: bool = False) -> Iterator[None]:
    """A spinner on stderr while something slow is being prepared; silent where stderr is no terminal."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    with console.status(message):
        yield


@contextmanager
def progress(label: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; call the yielded function with the number of units done so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
