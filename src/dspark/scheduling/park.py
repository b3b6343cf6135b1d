"""Not drafting while it does not pay, whatever the scheduler (design contract 3)."""

from dataclasses import replace

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.cost import CostModel, RoundSeconds
from dspark.scheduling.draft_yield import DraftYield
from dspark.scheduling.fixed import settled_lengths
from dspark.scheduling.known_rounds import KnownRounds
from dspark.scheduling.probe import TELLING, Probe, ProbeSchedule
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.scheduling.scheduler import Scheduler

WORTH = 1.03
"""How much faster than plain decoding a plan must promise to be: rounds that draft cost a little in other places, too,
and on a machine at work, whose caches hold other things, drafting takes longer than where it was measured."""

UNSEEN = -1
"""Number of a plan that is not the inner scheduler's."""


class Parked:
    """Lets `inner` draft only while what it plans pays: by what past drafts really brought, and the cost of this batch.

    Running means of past rounds (each moves them by `rate`, less where few draft) are all it knows, so that no draft of
    this round can bias it. A plan is judged at its own width, one that leaves the width open at the usual one. While
    parked, `probes` says when to draft nevertheless; what the inner scheduler tries as its own probe is let through.
    Floors were promised: a parked round with floors drafts and verifies these alone, and what is planned beside them
    need only pay more.
    """

    def __init__(
        self, inner: Scheduler, cost: CostModel, rate: float = 0.05, probes: ProbeSchedule | None = None
    ) -> None:
        if not 0 < rate <= 1:
            raise ConfigError(f"rate is {rate}; expected a share above 0 and up to 1")
        self._inner = inner
        self._rounds = KnownRounds(cost)
        probes = probes or ProbeSchedule()
        self._yield = DraftYield(rate, probes)
        self._probe = Probe(probes)
        self._told: list[Outcome] = []
        self._lets = False

    def plan(self, batch: Batch) -> Plan:
        """The inner plan; or the floors alone, without any no drafts."""
        plan = self._inner.plan(batch)
        if not plan.drafts or plan.probe or (plan.kept and self._lets):
            return plan
        self._learn()
        if not self._yield.known:
            return plan
        seconds = self._rounds.seconds(batch) if plan.seconds is None else plan.seconds
        planned, plain = self._rate(plan.batch, self._drafts(plan), seconds), WORTH * batch.requests / seconds.plain
        if planned > plain:
            self._probe.reset()
        self._lets = planned > (self._rate(batch, batch.floor_tokens, seconds) if batch.floor_tokens else plain)
        if self._lets:
            return plan
        if self._probe.due(batch.drafting):
            return replace(plan, probe=True)
        if batch.floor_tokens:
            return replace(plan, full=False, budget=batch.floor_tokens)
        return Plan(batch, UNSEEN, drafts=False)

    def promise(self, batch: Batch) -> float | None:
        """The inner scheduler's, or what past drafts really brought if that is less."""
        self._learn()
        promised = self._inner.promise(batch)
        if promised is None or not self._yield.known:
            return promised
        blocks = [batch.narrowed(width) for width in range(1, batch.gamma + 1)]
        rates = [self._rate(narrow, narrow.room, self._rounds.seconds(narrow)) for narrow in blocks]
        return min(promised, max(rates) * self._rounds.seconds(batch).plain / batch.requests)

    def recheck(self) -> None:
        """The next probe comes as soon as the first one did."""
        self._inner.recheck()
        self._probe.reset()

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        """As the inner scheduler has it, which sees the confidences also where floors alone are verified."""
        if plan.number == UNSEEN:
            return settled_lengths(plan)
        lengths = self._inner.lengths(plan, confidences)
        floors = plan.batch.floors
        return floors.astype(np.int64) if floors is not None and _floors_alone(plan) else lengths

    def observe(self, outcome: Outcome) -> None:
        """Note it for the means, but not floors alone: their width is not the usual one. Tell the inner scheduler."""
        if outcome.plan.number != UNSEEN:
            self._inner.observe(outcome)
        if outcome.plan.drafts and (outcome.plan.probe or not _floors_alone(outcome.plan)):
            self._told.append(outcome)
        if len(self._told) >= TELLING:  # plans that rest are not judged
            self._learn()

    def _learn(self) -> None:
        """Take in what was told since plans were last judged."""
        for outcome in self._told:
            self._yield.observe(outcome)
        self._told.clear()

    def _rate(self, batch: Batch, drafts: int, seconds: RoundSeconds) -> float:
        """Tokens per second of a round that verifies `drafts` drafts, by what past ones brought."""
        tokens = batch.requests + batch.drafting * self._yield.surviving(drafts / batch.drafting)
        return float(tokens / seconds.drafted[drafts])

    def _drafts(self, plan: Plan) -> int:
        """How many drafts the plan will verify."""
        batch = plan.batch
        if plan.full:
            return batch.room
        usual = round(self._yield.width * batch.drafting) if plan.budget is None else plan.budget
        return min(max(usual, batch.floor_tokens), batch.room)


def _floors_alone(plan: Plan) -> bool:
    return plan.batch.floor_tokens > 0 and plan.budget == plan.batch.floor_tokens
