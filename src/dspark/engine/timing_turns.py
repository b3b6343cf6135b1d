"""Timing several pieces of work side by side, on a machine that also does other things."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from random import Random
from statistics import fmean
from typing import Generic, TypeVar

from dspark.engine.stopwatch import Clock

Key = TypeVar("Key")

LEAST_TURNS = 4
"""Turns that are taken whatever they cost: fewer looks at a point say little about its noise."""

ENOUGH_TURNS = 30
SETTLED = 0.005
"""Measuring ends early when every point repeats to this relative error, after `SETTLED_TURNS`."""

SETTLED_TURNS = 5

MEAN_TO_DEVIATION = sqrt(pi / 2)
"""Of normal errors: their standard deviation over the mean of their sizes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """`seconds` of the fastest of all runs, and its relative error."""

    seconds: float
    noise: float


@dataclass(frozen=True, slots=True)
class Timings(Generic[Key]):
    """Every point after `turns` runs of each."""

    points: Mapping[Key, Timing]
    turns: int


def take_turns(
    work: Mapping[Key, Callable[[], None]],
    budget_seconds: float,
    random: Random,
    clock: Clock,
    watch: Callable[[float], None] = lambda share: None,
) -> Timings[Key]:
    """Time every piece of `work`, in a new order each turn, until all are settled or the budget is spent.

    Other work on the machine only ever adds time, so the fastest run is nearest to the truth; how far it is from it
    shows in the fastest of even and of odd turns. All take turns, that drift may hit them alike. `watch` is told the
    share of the budget that is spent.
    """
    runs: dict[Key, list[float]] = {key: [] for key in work}
    started, order, turns = clock(), list(work), 0
    while turns < LEAST_TURNS or not _finished(runs, turns, clock() - started, budget_seconds):
        random.shuffle(order)
        for key in order:
            before = clock()
            work[key]()
            runs[key].append(clock() - before)
        turns += 1
        watch(min((clock() - started) / budget_seconds, 1.0) if budget_seconds else 1.0)
    return Timings({key: timing(seconds) for key, seconds in runs.items()}, turns)


def timing(runs: list[float]) -> Timing:
    """The fastest of two or more `runs`; its error is how much the fastest of even and odd runs differ."""
    fast, slow = sorted((min(runs[::2]), min(runs[1::2])))
    return Timing(fast, (slow - fast) / slow if slow > 0 else 0.0)


def common_noise(points: Sequence[Timing]) -> float:
    """Twice the standard deviation of the relative errors of `points`, taken for equal.

    From their mean: it lets a flat curve look flat whatever the disturbances are like, which their median does not.
    """
    return 2 * MEAN_TO_DEVIATION * fmean(point.noise for point in points)


def _finished(runs: Mapping[Key, list[float]], turns: int, spent: float, budget_seconds: float) -> bool:
    """Another turn would take about as long as those before."""
    if turns >= ENOUGH_TURNS or spent * (turns + 1) / turns > budget_seconds:
        return True
    return turns >= SETTLED_TURNS and all(timing(seconds).noise <= SETTLED for seconds in runs.values())
