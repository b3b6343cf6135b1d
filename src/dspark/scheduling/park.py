"""Not drafting while it does not pay, whatever the scheduler (design contract 3)."""

from dataclasses import replace

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.cost import CostModel
from dspark.scheduling.draft_yield import DraftYield
from dspark.scheduling.fixed import settled_lengths
from dspark.scheduling.probe import Probe, ProbeSchedule
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.scheduling.scheduler import Scheduler

UNSEEN = -1
"""Number of a plan that is not the inner scheduler's."""


class Parked:
    """Lets `inner` draft only while what it plans pays: by what past drafts really brought, and the cost of this batch.

    Running means of past rounds (each moves them by `rate`) are all it knows, so that no draft of this round can bias
    it. A plan is judged at its own width, one that leaves the width open at the usual one. While parked, `probes` says
    when to draft nevertheless; what the inner scheduler tries as its own probe is let through.
    """

    def __init__(
        self, inner: Scheduler, cost: CostModel, rate: float = 0.05, probes: ProbeSchedule | None = None
    ) -> None:
        if not 0 < rate <= 1:
            raise ConfigError(f"rate is {rate}; expected a share above 0 and up to 1")
        self._inner = inner
        self._cost = cost
        self._yield = DraftYield(rate)
        self._probe = Probe(probes or ProbeSchedule())

    def plan(self, batch: Batch) -> Plan:
        """The inner plan, or no drafts."""
        plan = self._inner.plan(batch)
        if not plan.drafts or plan.probe:
            return plan
        if self._pays(plan):
            self._probe.reset()
            return plan
        return replace(plan, probe=True) if self._probe.due() else Plan(batch, UNSEEN, drafts=False)

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        """As the inner scheduler has it."""
        return settled_lengths(plan) if plan.number == UNSEEN else self._inner.lengths(plan, confidences)

    def observe(self, outcome: Outcome) -> None:
        """Update the means; tell the inner scheduler of its own rounds."""
        if outcome.plan.number != UNSEEN:
            self._inner.observe(outcome)
        if outcome.plan.drafts:
            self._yield.observe(outcome)

    def _pays(self, plan: Plan) -> bool:
        if not self._yield.known:
            return True
        batch = plan.batch
        drafts = self._drafts(plan)
        seconds = batch.round_seconds(self._cost) if plan.seconds is None else plan.seconds
        tokens = batch.requests + batch.drafting * self._yield.surviving(drafts / batch.drafting)
        return bool(tokens / seconds.drafted[drafts] > batch.requests / seconds.plain)

    def _drafts(self, plan: Plan) -> int:
        """How many drafts the plan will verify."""
        room = plan.batch.room
        if plan.full:
            return room
        return min(round(self._yield.width * plan.batch.drafting) if plan.budget is None else plan.budget, room)
