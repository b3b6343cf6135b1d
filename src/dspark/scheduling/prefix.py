"""Algorithm 1: this round's confidences decide, stopping where throughput stops rising (paper, section 3.2.2)."""

from itertools import count

from dspark.scheduling.admission import admit
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.budget import first_peak, prospects
from dspark.scheduling.cost import CostModel
from dspark.scheduling.fixed import settled_lengths
from dspark.scheduling.known_rounds import KnownRounds
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.scheduling.survival import survivals

FIRST_LOOK = 1024
"""The search mostly stops within this many candidates; sorting no more of them saves half the time."""


class PrefixScheduler:
    """Admits candidates by survival while tokens per second of the round rise strictly: the best, if there is one peak.

    SPS of the paper is 1 / (draft + verify + overhead): once a round has drafted, that time is spent at any length.
    Where the cost curve is no clearer than its noise, everything is verified. Always drafts: wrap it in `Parked` where
    that may not pay.
    """

    def __init__(self, cost: CostModel) -> None:
        self._rounds = KnownRounds(cost)
        self._numbers = count()

    def plan(self, batch: Batch) -> Plan:
        """Leaves the budget open, or asks for everything where there is no ground for trimming."""
        seconds = self._rounds.seconds(batch)
        return Plan(batch, next(self._numbers), batch.room > 0, full=not seconds.resolved, seconds=seconds)

    def promise(self, batch: Batch) -> None:
        """Nobody asked whether it pays."""

    def recheck(self) -> None:
        """It never rests."""

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        """The prefix lengths [B] of Algorithm 1."""
        batch = plan.batch
        if plan.full or not plan.drafts:
            return settled_lengths(plan)
        value = batch.value(survivals(confidences, batch))
        seconds = plan.seconds or self._rounds.seconds(batch)
        now = prospects(batch, value, seconds, FIRST_LOOK)
        if first_peak(now.drafted) == FIRST_LOOK:
            now = prospects(batch, value, seconds)
        return admit(batch, value, batch.floor_tokens + first_peak(now.drafted), now.gains)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
