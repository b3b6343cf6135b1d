"""What a scheduler's rounds cost, and a word where nobody has measured it."""

import warnings

from dspark.scheduling.cost import CostModel, RoundSeconds
from dspark.scheduling.round import Batch

NEAR, KEPT_FOR = 16, 32
"""Positions of context within which costs are not looked up anew, and after how many questions they are in any case:
tables follow the clock."""


class KnownRounds:
    """`cost` for one scheduler; the first batch that was not measured is warned of (contract 3).

    Batches that differ in their contexts by few positions are taken to cost the same, for some rounds.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._warned = False
        self._kept: dict[tuple[float | None, ...], RoundSeconds] = {}
        self._asked = 0

    def seconds(self, batch: Batch) -> RoundSeconds:
        """What a round of `batch` costs at each number of drafts."""
        self._asked += 1
        if self._asked >= KEPT_FOR:
            self.forget()
        near = int(batch.context) // NEAR
        key = (batch.requests, batch.drafting, batch.room, batch.share, batch.reach, batch.beside, near)
        if key not in self._kept:
            self._kept[key] = self._measured(batch)
        return self._kept[key]

    def forget(self) -> None:
        """Look costs up anew from here on."""
        self._kept.clear()
        self._asked = 0

    def _measured(self, batch: Batch) -> RoundSeconds:
        seconds = batch.round_seconds(self._cost)
        if not (seconds.measured or self._warned):
            self._warned = True
            warnings.warn(
                f"the cost table has no draft time for {batch.drafting} requests at once: it is extrapolated, and such "
                "rounds are not trimmed by cost. Measure drafting up to the largest batch.",
                stacklevel=3,
            )
        return seconds
