"""When requests of an open loop arrive, whatever the engine does about the earlier ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np

from dspark.errors import ConfigError


class Arrivals(Protocol):
    """A renewal process of `rate` requests a second."""

    @property
    def rate(self) -> float: ...

    def gaps(self, random: np.random.Generator) -> Iterator[float]:
        """Seconds between one request and the next, without end."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: gaps are exponential, the count of any window has variance / mean 1.

    Raises:
        ConfigError: the rate is no positive number.
    """

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def gaps(self, random: np.random.Generator) -> Iterator[float]:
        """Exponential gaps."""
        while True:
            yield float(random.exponential(1 / self.rate))


@dataclass(frozen=True, slots=True)
class Bursty:
    """Gaps are gamma distributed with coefficient of variation `variation`: crowds, then silence, where it exceeds 1.

    The count of a long window has variance / mean `variation`^2.

    Raises:
        ConfigError: rate or variation is no positive number.
    """

    rate: float
    variation: float = 3.0

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if not 0 < self.variation < inf:
            raise ConfigError(
                f"the variation of arrivals is {self.variation}; expected a positive number, 1 is Poisson"
            )

    def gaps(self, random: np.random.Generator) -> Iterator[float]:
        """Gamma gaps of mean 1 / rate."""
        shape = self.variation**-2
        while True:
            yield float(random.gamma(shape, 1 / (self.rate * shape)))


def _check_rate(rate: float) -> None:
    if not 0 < rate < inf:
        raise ConfigError(f"the rate is {rate} requests a second; expected a positive number")
