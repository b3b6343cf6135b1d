"""When an engine that has stopped drafting should try again."""

from dataclasses import dataclass

from dspark.errors import ConfigError

TELLING = 8
"""Blocks that tell something together; what one brings says nothing."""

CROWD = 5
"""From so many requests on, a round counts whole: its blocks make up for each other's luck."""


def weight(rate: float, requests: int) -> float:
    """How far a round of `requests` moves a mean that a round of a crowd moves by `rate`."""
    return rate * min(requests / CROWD, 1.0)


@dataclass(frozen=True, slots=True)
class ProbeSchedule:
    """Try after `first` rounds without drafting, then after twice as many each time, up to `longest`.

    A probe goes on until `blocks` were drafted, which is one round of 8 requests or more. So one that never pays costs
    at most so many rounds of each `longest` in the long run.

    Raises:
        ConfigError: `first` is below 1 or above `longest`, or `blocks` below 1.
    """

    first: int = 16
    longest: int = 256
    blocks: int = TELLING

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.longest:
            raise ConfigError(f"first is {self.first} and longest {self.longest}; expected 1 <= first <= longest")
        if self.blocks < 1:
            raise ConfigError(f"blocks is {self.blocks}; a probe drafts 1 or more")

    def rounds(self, requests: int) -> int:
        """How many rounds a probe of `requests` takes."""
        return -(-self.blocks // max(requests, 1))


class Probe:
    """Counts the rounds without drafting."""

    def __init__(self, schedule: ProbeSchedule) -> None:
        self._schedule = schedule
        self.reset()

    def reset(self) -> None:
        """Drafting pays again."""
        self._wait, self._rested, self._left = self._schedule.first, 0, 0

    def due(self, requests: int) -> bool:
        """Called for each round of `requests` that would rest: whether it should draft nevertheless."""
        if self._left:
            self._left -= 1
            return True
        self._rested += 1
        if self._rested < self._wait:
            return False
        self._wait, self._rested = min(2 * self._wait, self._schedule.longest), 0
        self._left = self._schedule.rounds(requests) - 1
        return True
