"""Every arm at every load, several times, in an order that drift of the machine cannot follow."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from dspark.errors import CompatibilityError, FormatError
from dspark.evaluation.bench.load import Load
from dspark.evaluation.bench.run_figures import RunFigures
from dspark.evaluation.evaluate import whole_lines


@dataclass(frozen=True, slots=True)
class Setting:
    """One run to be made: an arm under a load, for the `repeat`-th time (from 0)."""

    arm: str
    load: Load
    repeat: int

    @property
    def key(self) -> tuple[str, str, int | float | None, int]:
        """What tells it from all others, as a journal holds it."""
        return self.arm, self.load.kind, self.load.users or self.load.rate, self.repeat


@dataclass(frozen=True, slots=True)
class Done:
    """A run that was made."""

    setting: Setting
    figures: RunFigures


def settings(arms: Sequence[str], loads: Sequence[Load], repeats: int, seed: int = 0) -> Iterator[Setting]:
    """All runs. A repeat visits the loads in random order, and at each load all arms in random order, one by one.

    So arms that are compared within a repeat ran next to each other, and none is always the first.
    """
    for repeat in range(repeats):
        random = Random(f"{seed} {repeat}")
        for load in random.sample(loads, len(loads)):
            for arm in random.sample(arms, len(arms)):
                yield Setting(arm, load, repeat)


def make_runs(
    todo: Iterator[Setting], run: Callable[[Setting], RunFigures], journal: "RunJournal | None" = None
) -> Iterator[Done]:
    """The runs of `todo` as they are made; those in the journal are taken from there, others are written to it."""
    for setting in todo:
        figures = None if journal is None else journal.find(setting)
        if figures is None:
            figures = run(setting)
            if journal is not None:
                journal.record(setting, figures)
        yield Done(setting, figures)


class RunJournal:
    """Finished runs, one JSON line each after a line of what they have in common, so that a benchmark can go on.

    Raises:
        FormatError: the file is something else.
        CompatibilityError: its runs were made with other settings, or on another machine.
    """

    def __init__(self, path: Path, common: Mapping[str, Any]) -> None:
        self._path, self._done = path, dict[tuple[Any, ...], RunFigures]()
        expected = json.loads(json.dumps(common))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": expected})
            return
        found = self._read()
        if found != expected:
            keys = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
            raise CompatibilityError(f"{path} was made with another {', '.join(keys)}. Name another file.")

    def find(self, setting: Setting) -> RunFigures | None:
        """The figures of a run that was made before."""
        return self._done.get(setting.key)

    def record(self, setting: Setting, figures: RunFigures) -> None:
        """Append a run at once."""
        self._append({"run": setting.key, "figures": asdict(figures)})

    def _read(self) -> dict[str, Any]:
        try:
            first, *rows = [json.loads(line) for line in whole_lines(self._path)]
            self._done = {tuple(row["run"]): RunFigures(**row["figures"]) for row in rows}
            return dict(first["settings"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{self._path} is no journal of a benchmark: {error}. Name another file.") from error

    def _append(self, row: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
