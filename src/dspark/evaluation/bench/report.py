"""What a benchmark reports: a row for each arm and load, with intervals, and ratios between arms."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from dspark.evaluation.bench.arms import ARMS
from dspark.evaluation.bench.load import Load
from dspark.evaluation.bench.run_figures import RunFigures
from dspark.evaluation.bench.runs import Done
from dspark.evaluation.bootstrap import median_interval

COMPARED = "tokens_per_second"
"""The figure that ratios between arms are of."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median over repeats with its 95 % bootstrap interval, which few repeats make their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Of one value a repeat."""
        return cls(median(values), *median_interval(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One arm under one load: its figures by name, and `over[other]`, the ratio of its throughput to another arm's.

    Ratios are taken within repeats, in which both ran side by side on the same prompts.
    """

    arm: str
    load: Load
    repeats: int
    figures: Mapping[str, Estimate | None]
    over: Mapping[str, Estimate]

    def value(self, name: str) -> float | None:
        """The median of a figure; None where no repeat had it."""
        estimate = self.figures[name]
        return None if estimate is None else estimate.median

    def as_json(self) -> dict[str, Any]:
        """The shape scripts rely on (contract 7): medians by name, `intervals` beside them."""
        known = {name: estimate for name, estimate in self.figures.items() if estimate is not None}
        return {
            "arm": self.arm,
            "load": self.load.kind,
            "concurrency": self.load.users,
            "rate": self.load.rate,
            "repeats": self.repeats,
            **{name: self.value(name) for name in self.figures},
            "intervals": {name: [estimate.low, estimate.high] for name, estimate in known.items()},
            "over": {name: asdict(estimate) for name, estimate in self.over.items()},
        }


def rows(done: Sequence[Done]) -> list[Row]:
    """A row for each arm and load that has runs, loads in rising order, arms in the order of the registry."""
    runs: dict[tuple[Load, str], dict[int, RunFigures]] = defaultdict(dict)
    for one in done:
        runs[one.setting.load, one.setting.arm][one.setting.repeat] = one.figures
    places = {name: place for place, name in enumerate(ARMS)}
    loads = sorted({load for load, _ in runs}, key=lambda load: (load.kind, load.users or load.rate or 0))
    arms = sorted({arm for _, arm in runs}, key=lambda arm: places.get(arm, len(places)))
    return [_row(arm, load, arms, runs) for load in loads for arm in arms if (load, arm) in runs]


def _row(arm: str, load: Load, arms: Sequence[str], runs: Mapping[tuple[Load, str], Mapping[int, RunFigures]]) -> Row:
    own = runs[load, arm]
    figures = {
        field.name: _estimate([getattr(one, field.name) for one in own.values()]) for field in fields(RunFigures)
    }
    over = {other: _over(own, runs[load, other]) for other in arms if other != arm and (load, other) in runs}
    return Row(arm, load, len(own), figures, {other: ratio for other, ratio in over.items() if ratio is not None})


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return Estimate.of(known) if known else None


def _over(own: Mapping[int, RunFigures], other: Mapping[int, RunFigures]) -> Estimate | None:
    shared = sorted(own.keys() & other.keys())
    values = [(getattr(own[repeat], COMPARED), getattr(other[repeat], COMPARED)) for repeat in shared]
    return _estimate([a / b for a, b in values if b > 0])
