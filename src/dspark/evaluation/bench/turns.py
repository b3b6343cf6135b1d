"""Several engines side by side on one machine: each works for a moment at a time, on a clock of its own."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dspark.engine.stopwatch import Clock
from dspark.evaluation.bench.drive import Drive
from dspark.evaluation.bench.serving import ServingCore
from dspark.evaluation.bench.trace import Run
from dspark.evaluation.bench.workload import Workload

TURN_SECONDS = 0.5
"""A turn lasts so long, or one step: short beside the minutes in which a machine's speed drifts, long beside what the
first step of a turn loses to cold caches."""


class TurnClock:
    """Seconds of one engine's turns: it stands still while others have theirs."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._passed = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._passed + (0.0 if self._since is None else self._clock() - self._since)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let it run."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._passed, self._since = self(), None


def drive_in_turns(
    cores: Sequence[tuple[ServingCore, TurnClock]],
    workload: Workload,
    seed: int = 0,
    wait: Callable[[float], None] = time.sleep,
    watch: Callable[[int], None] = lambda ended: None,
) -> list[Run]:
    """Runs of the same workload by all `cores`, each of which tells the time by the clock beside it.

    The next turn has who has given the fewest tokens so far. So all have come equally far at any time, and what slows
    the machine down for a while slows all of them down at the same place. `watch` is told how many measured requests
    of all have ended.

    Raises:
        EngineError: as `drive` says.
    """
    drives = [Drive(core, workload, seed, clock, wait) for core, clock in cores]
    while open_ones := [pair for pair in zip(drives, cores, strict=True) if pair[0].left]:
        drive, (_, clock) = min(open_ones, key=lambda pair: pair[0].tokens)
        with clock.turn():
            end = clock() + TURN_SECONDS
            while drive.left and clock() < end:
                drive.go_on()
        watch(sum(workload.requests - one.left for one in drives))
    return [_ended(drive, clock) for drive, (_, clock) in zip(drives, cores, strict=True)]


def _ended(drive: Drive, clock: TurnClock) -> Run:
    with clock.turn():
        return drive.end()
