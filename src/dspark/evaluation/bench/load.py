"""How requests come: from users who wait for their answers, or from a world that does not."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Protocol

import numpy as np

from dspark.errors import ConfigError
from dspark.evaluation.bench.arrivals import Arrivals


class Sender(Protocol):
    """Says when requests are sent, told which have ended."""

    @property
    def next(self) -> float:
        """When the next request is due if none ends before; infinite where one has to."""
        ...

    def due(self, now: float) -> list[float]:
        """The times, up to `now`, of requests to be sent now: an engine that was busy does not postpone an arrival."""
        ...

    def ended(self) -> None:
        """One request has ended."""
        ...


class Load(Protocol):
    """A level of load, as a value: `kind` and either `users` or `rate`."""

    @property
    def kind(self) -> str: ...
    @property
    def users(self) -> int | None: ...
    @property
    def rate(self) -> float | None: ...

    def sender(self, start: float, random: np.random.Generator) -> Sender:
        """A run of this load that begins at `start`."""
        ...


@dataclass(frozen=True, slots=True)
class Closed:
    """`users` who each send the next prompt when the last answer has ended.

    Raises:
        ConfigError: no user.
    """

    users: int

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ConfigError(f"concurrency is {self.users}; expected 1 user or more")

    @property
    def kind(self) -> str:
        """Loops are closed."""
        return "closed"

    @property
    def rate(self) -> None:
        """As fast as answers come."""
        return

    def sender(self, start: float, random: np.random.Generator) -> Sender:
        """All users begin at once."""
        return _Users(self.users)


@dataclass(frozen=True, slots=True)
class Open:
    """Requests at the times of `arrivals`."""

    arrivals: Arrivals

    @property
    def kind(self) -> str:
        """Name of the process."""
        return type(self.arrivals).__name__.lower()

    @property
    def users(self) -> None:
        """As many as happen to be there."""
        return

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.arrivals.rate

    def sender(self, start: float, random: np.random.Generator) -> Sender:
        """The first request comes a gap after `start`."""
        return _Clockwork(accumulate(self.arrivals.gaps(random), initial=start))


class _Users:
    next = inf

    def __init__(self, users: int) -> None:
        self._free = users

    def due(self, now: float) -> list[float]:
        free, self._free = self._free, 0
        return [now] * free

    def ended(self) -> None:
        self._free += 1


class _Clockwork:
    def __init__(self, times: Iterator[float]) -> None:
        self._times = times
        next(times)  # the start itself
        self.next = next(times)

    def due(self, now: float) -> list[float]:
        times = []
        while self.next <= now:
            times.append(self.next)
            self.next = next(self._times)
        return times

    def ended(self) -> None:
        """Nobody waits for it."""
