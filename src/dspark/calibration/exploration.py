"""Which rounds of a serving engine are verified in full, so that their outcome is not censored by the schedule."""

from dataclasses import dataclass

import numpy as np

from dspark.core.streams import SEED_LIMIT
from dspark.errors import ConfigError

_EXPLORATION = 1
"""Counter word that keeps these numbers apart from those of `core.streams`, which leave it 0."""


@dataclass(frozen=True, slots=True)
class RoundLottery:
    """Draws a random `share` of all rounds, each decided before its drafts exist, from a random stream of its own.

    A choice depends on seed, request number and the output position where the round begins, on nothing else: neither
    on drafts and their confidences (which would bias the text and the records) nor on batch, order or preemption.
    """

    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"share is {self.share}; expected a number from 0 to 1")
        if not 0 <= self.seed < SEED_LIMIT:
            raise ConfigError(f"seed is {self.seed}; expected an integer from 0 to 2^64 - 1")

    def draws(self, request: int, position: int) -> bool:
        """Whether the round of `request` (0 to 2^64 - 1) that begins at output `position` is verified in full."""
        key = np.array((self.seed, request), dtype=np.uint64)
        counter = np.array((0, position, _EXPLORATION, 0), dtype=np.uint64)
        return float(np.random.Generator(np.random.Philox(key=key, counter=counter)).random()) < self.share
