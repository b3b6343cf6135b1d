"""What drafts really brought, position by position: running means of past rounds. Shapes: gamma drafts per request."""

from bisect import bisect_right

import numpy as np

from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.round import Outcome

PROBE_WEIGHT = 0.5
"""What a probe counts at least against all that was known before it, which is old."""


class DraftYield:
    """Per drafting request and position, how many drafts were verified and how many survived.

    Each round moves the means by the share `rate`, the first ones by more, so that they start as plain averages. A
    batch with another gamma starts anew.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._rounds = 0
        self._means: Floats = np.zeros((2, 0))
        self._widths = self._surviving = [0.0]

    @property
    def known(self) -> bool:
        """Whether any round was seen."""
        return self._rounds > 0

    @property
    def width(self) -> float:
        """Mean number of verified drafts per drafting request."""
        return float(self._means[0].sum())

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round that drafted."""
        gamma, drafting = outcome.plan.batch.gamma, outcome.plan.batch.drafting
        counts = np.stack([_reaching(outcome.lengths, gamma), _reaching(outcome.accepted, gamma)])
        if counts.shape != self._means.shape:
            self._rounds, self._means = 0, np.zeros(counts.shape)
        self._rounds += 1
        share = max(self._rate, 1 / self._rounds, PROBE_WEIGHT if outcome.plan.probe else 0.0)
        self._means += share * (counts / drafting - self._means)
        verified, survived = self._means
        survival = np.divide(survived, verified, out=np.ones_like(verified), where=verified > 0)
        self._widths = np.concatenate([[0.0], verified, 1 - verified]).cumsum().tolist()
        self._surviving = np.concatenate([[0.0], survived, (1 - verified) * survival]).cumsum().tolist()

    def surviving(self, width: float) -> float:
        """Drafts per drafting request that are expected to survive when `width` of them are verified.

        Less than usual leaves out the last positions; more adds the drafts that are usually left out, with the survival
        of those verified at their position (1 where there were none).
        """
        i = bisect_right(self._widths, width) - 1
        if i + 1 == len(self._widths):
            return self._surviving[i]
        slope = (self._surviving[i + 1] - self._surviving[i]) / (self._widths[i + 1] - self._widths[i])
        return slope * (width - self._widths[i]) + self._surviving[i]


def _reaching(lengths: Ints, gamma: int) -> Ints:
    """How many [gamma] of `lengths` [B] are at least 1 ... gamma."""
    return np.bincount(lengths, minlength=gamma + 1)[:0:-1].cumsum()[::-1]
