"""When an engine that has stopped drafting should try again."""

from dataclasses import dataclass

from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ProbeSchedule:
    """Try after `first` rounds without drafting, then after twice as many each time, up to `longest`.

    So a probe that never pays costs at most 1 / `longest` of the rounds in the long run.

    Raises:
        ConfigError: `first` is below 1 or above `longest`.
    """

    first: int = 16
    longest: int = 256

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.longest:
            raise ConfigError(f"first is {self.first} and longest {self.longest}; expected 1 <= first <= longest")


class Probe:
    """Counts the rounds without drafting."""

    def __init__(self, schedule: ProbeSchedule) -> None:
        self._schedule = schedule
        self.reset()

    def reset(self) -> None:
        """Drafting pays again."""
        self._wait, self._rested = self._schedule.first, 0

    def due(self) -> bool:
        """Called for each round that would rest: whether it should draft nevertheless."""
        self._rested += 1
        if self._rested < self._wait:
            return False
        self._wait, self._rested = min(2 * self._wait, self._schedule.longest), 0
        return True
