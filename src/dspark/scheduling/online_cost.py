"""A cost table that follows the machine: corrected from the times of real rounds."""

import math
from dataclasses import dataclass

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats
from dspark.scheduling.cost import RoundSeconds
from dspark.scheduling.cost_table import CostTable

LARGEST_STEP = math.log(2)
"""One round counts as at most twice too slow or too fast: a pause of the machine says little."""


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """Measured seconds of one round that verified `tokens` rows, anchors included, with `drafting` requests drafting.

    `requests` says whose the rows were; None where that is not known. `share` says how long the drafted blocks were: 0
    is one slot, 1 a whole block.

    Raises:
        ConfigError: a time is negative or not finite, or verification took none.
    """

    tokens: int
    context: float
    drafting: int
    verify_seconds: float
    draft_seconds: float
    overhead_seconds: float
    requests: int | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("verify_seconds", "draft_seconds", "overhead_seconds"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf or (name == "verify_seconds" and seconds == 0):
                raise ConfigError(f"{name} of a round is {seconds}; expected seconds: look at the clock")


class OnlineCost:
    """Corrects a `CostTable` by factors: one for the level, one more for each measured size, one for drafting.

    Each round moves the factors by the share `rate` of its logarithmic error. The corrected table is published every
    `publish_every` rounds, so that decisions in between cost nothing. Depends on past times only: the text's law is
    untouched.

    Raises:
        ConfigError: `rate` is no share, or `publish_every` is below 1.
    """

    def __init__(self, table: CostTable, rate: float = 0.05, publish_every: int = 16) -> None:
        if not 0 < rate <= 1:
            raise ConfigError(f"rate is {rate}; expected a share above 0 and up to 1")
        if publish_every < 1:
            raise ConfigError(f"publish_every is {publish_every}; expected 1 round or more")
        self.table = table
        self._measured = table
        self._rate = rate
        self._publish_every = publish_every
        self._noted: list[RoundTiming] = []
        self._log_verify = np.zeros(len(table.tokens))
        self._log_draft = 0.0
        self._overhead = table.overhead_seconds

    def round_seconds(
        self, requests: int, drafting: int, most: int, context: float, share: float = 1.0
    ) -> RoundSeconds:
        """As the corrected table has it."""
        return self.table.round_seconds(requests, drafting, most, context, share)

    def observe(self, timing: RoundTiming) -> None:
        """Note one round; many are learned from together, which takes a fifth of the time."""
        self._noted.append(timing)
        if len(self._noted) < self._publish_every:
            return
        for noted in self._noted:
            self._learn(noted)
        self._noted.clear()
        self.table = self._measured.scaled(np.exp(self._log_verify), math.exp(self._log_draft), self._overhead)

    def _learn(self, timing: RoundTiming) -> None:
        near = self._shares(timing.tokens)
        known = math.log(self._measured.verify(timing.tokens, timing.tokens, timing.context, timing.requests)[0])
        error = _clipped(math.log(timing.verify_seconds) - known - float(near @ self._log_verify))
        self._log_verify += self._rate * error * (0.5 + 0.5 * near)
        drafting = self._measured.draft(timing.drafting, timing.share)
        if drafting > 0 and timing.draft_seconds > 0:
            self._log_draft += self._rate * _clipped(math.log(timing.draft_seconds / drafting) - self._log_draft)
        self._overhead += self._rate * (timing.overhead_seconds - self._overhead)

    def _shares(self, tokens: int) -> Floats:
        """How much each measured size [tokens] has to do with this one; the shares sum to 1."""
        grid = self._measured.tokens
        shares = np.zeros(len(grid))
        right = min(int(np.searchsorted(grid, tokens)), len(grid) - 1)
        if right == 0 or self._measured.padded or tokens >= grid[right]:
            shares[right] = 1.0
        else:
            shares[right] = (tokens - grid[right - 1]) / (grid[right] - grid[right - 1])
            shares[right - 1] = 1.0 - shares[right]
        return shares


def _clipped(error: float) -> float:
    return min(max(error, -LARGEST_STEP), LARGEST_STEP)
