"""What drafts really brought, position by position: running means of past rounds. Shapes: gamma drafts per request."""

from bisect import bisect_right
from itertools import accumulate

import numpy as np

from dspark.scheduling.arrays import Ints
from dspark.scheduling.probe import ProbeSchedule, weight
from dspark.scheduling.round import Outcome

PROBE_WEIGHT = 0.5
"""What a probe counts at least against all that was known before it, which is old."""


class DraftYield:
    """Per drafting request and position, how many drafts were verified and how many survived.

    Each round moves the means by the share `rate`, one of few requests by less, the first ones by more, so that they
    start as plain averages. A batch with another gamma starts anew.
    """

    def __init__(self, rate: float, probes: ProbeSchedule) -> None:
        self._rate = rate
        self._probes = probes
        self._rounds = 0
        self._verified: list[float] = []
        self._survived: list[float] = []
        self._widths = [0.0]
        self._surviving = [0.0]

    @property
    def known(self) -> bool:
        """Whether any round was seen."""
        return self._rounds > 0

    @property
    def width(self) -> float:
        """Mean number of verified drafts per drafting request."""
        return float(np.sum(self._verified))

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round that drafted."""
        gamma, drafting = outcome.plan.batch.gamma, outcome.plan.batch.drafting
        if gamma != len(self._verified):
            self._rounds, self._verified, self._survived = 0, [0.0] * gamma, [0.0] * gamma
        self._rounds += 1
        probe = 1 - (1 - PROBE_WEIGHT) ** (1 / self._probes.rounds(drafting)) if outcome.plan.probe else 0.0
        share = max(weight(self._rate, drafting), 1 / self._rounds, probe)
        for means, lengths in ((self._verified, outcome.lengths), (self._survived, outcome.accepted)):
            for j, count in enumerate(_reaching(lengths, gamma)):
                means[j] += share * (count / drafting - means[j])
        self._tabulate()

    def _tabulate(self) -> None:
        """Widths and what they let survive: first the drafts that are usually verified, then those usually left out."""
        both = list(zip(self._verified, self._survived, strict=True))
        left_out = [1 - verified for verified in self._verified]
        late = [(1 - verified) * (survived / verified if verified > 0 else 1.0) for verified, survived in both]
        self._widths = list(accumulate([0.0, *self._verified, *left_out]))
        self._surviving = list(accumulate([0.0, *self._survived, *late]))

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


def _reaching(lengths: Ints, gamma: int) -> list[int]:
    """How many [gamma] of `lengths` [B] are at least 1 ... gamma."""
    counts = np.bincount(lengths, minlength=gamma + 1).tolist()
    return list(accumulate(counts[:0:-1]))[::-1]
