"""What a scheduler's rounds cost, and a word where nobody has measured it."""

import warnings

from dspark.scheduling.cost import CostModel, RoundSeconds
from dspark.scheduling.round import Batch


class KnownRounds:
    """`cost` for one scheduler; the first batch that was not measured is warned of (contract 3)."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._warned = False

    def seconds(self, batch: Batch) -> RoundSeconds:
        """What a round of `batch` costs at each number of drafts."""
        seconds = batch.round_seconds(self._cost)
        if not (seconds.measured or self._warned):
            self._warned = True
            warnings.warn(
                f"the cost table has no draft time for {batch.drafting} requests at once: it is extrapolated, and such "
                "rounds are not trimmed by cost. Measure drafting up to the largest batch.",
                stacklevel=3,
            )
        return seconds
