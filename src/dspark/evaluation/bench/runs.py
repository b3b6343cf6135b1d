"""Every arm at every load, several times, arms side by side so that drift of the machine cannot tell them apart."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """One run to be made: an arm under a load, for the `repeat`-th time (from 0), side by side with `others`."""

    arm: str
    load: Load
    repeat: int
    others: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int | float | None, int, str]:
        """What tells it from all others, as a journal holds it."""
        return self.arm, self.load.kind, self.load.users or self.load.rate, self.repeat, " ".join(sorted(self.others))


@dataclass(frozen=True, slots=True)
class Done:
    """A run that was made."""

    setting: Setting
    figures: RunFigures


def settings(arms: Sequence[str], loads: Sequence[Load], repeats: int, seed: int = 0) -> Iterator[list[Setting]]:
    """All runs, those together that are made side by side: of all arms at one load, in random order.

    A repeat visits the loads in random order, so that none is always the first.
    """
    for repeat in range(repeats):
        random = Random(f"{seed} {repeat}")
        for load in random.sample(loads, len(loads)):
            order = random.sample(arms, len(arms))
            yield [Setting(arm, load, repeat, tuple(other for other in order if other != arm)) for arm in order]


def make_runs(
    todo: Iterable[Sequence[Setting]],
    run: Callable[[Sequence[Setting]], Sequence[RunFigures]],
    journal: "RunJournal | None" = None,
) -> Iterator[list[Done]]:
    """The runs of `todo` as they are made; those in the journal are taken from there, others are written to it.

    Where one is missing of those that are made side by side, all of them are made: only then can they be compared.
    """
    for together in todo:
        known = [None if journal is None else journal.find(setting) for setting in together]
        found = [figures for figures in known if figures is not None]
        if len(found) < len(together):
            found = list(run(together))
            if journal is not None:
                for setting, figures in zip(together, found, strict=True):
                    journal.record(setting, figures)
        yield [Done(setting, figures) for setting, figures in zip(together, found, strict=True)]


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
