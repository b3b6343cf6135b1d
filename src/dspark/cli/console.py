"""What a verb prints: results on stdout, everything else on stderr, and with `--json` one object on stdout alone."""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table


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


class Bar:
    """A progress bar with a remark about the last unit of work."""

    def __init__(self, bar: "Progress", label: str, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=total, remark="")

    def begin(self, done: int, total: int) -> None:
        """Work goes on after `done` of `total` units that were finished before: they count for no speed."""
        self._bar.reset(self._task, completed=done, total=total, remark="")

    def show(self, done: int, remark: str) -> None:
        """`done` units are finished."""
        self._bar.update(self._task, completed=done, remark=remark)

    def advance(self, remark: str) -> None:
        """One more unit is finished."""
        self._bar.update(self._task, advance=1, remark=remark)


@contextmanager
def progress(label: str, total: int, quiet: bool = False, unit: str = "") -> Iterator[Bar]:
    """A bar on stderr over `total` units; silent where stderr is no terminal. With a `unit`, its rate is shown."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    texts = TextColumn("{task.description}"), TextColumn("{task.fields[remark]}", style="dim")
    rate = (_rate_column(unit),) if unit else ()
    columns = (texts[0], BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn(), texts[1])
    with Progress(*columns, console=console, transient=True) as bar:
        yield Bar(bar, label, total)


def _rate_column(unit: str) -> "ProgressColumn":
    """Units a second, or seconds a unit where they are slow."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            if not task.speed:
                return Text(f"- {unit}s/s")
            slow = task.speed < 1
            return Text(f"{1 / task.speed:.1f} s/{unit}" if slow else f"{task.speed:.1f} {unit}s/s")

    return Rate()


def table(title: str, *headers: str) -> "Table":
    """An empty table in the house style; no header line when all headers are empty."""
    from rich import box
    from rich.table import Table

    empty = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(headers))
    for index, header in enumerate(headers):
        empty.add_column(header, style="bold" if index == 0 else "")
    return empty


def size(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return "unknown"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


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
