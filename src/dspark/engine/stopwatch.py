"""Where the time of a run goes."""

from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""


class Stopwatch:
    """Attributes the time since the last lap to one activity; between `start` and the last lap nothing is lost."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def start(self) -> None:
        """Begin anew: what happened since the last lap belongs to nobody."""
        self._last = self._clock()

    def lap(self, activity: str) -> None:
        """Add the time since the last lap to `activity`."""
        now = self._clock()
        passed = max(now - self._last, 0.0)  # by itself, or else rounding could take time from the sum
        self.seconds[activity] = self.seconds.get(activity, 0.0) + passed
        self._last = now
