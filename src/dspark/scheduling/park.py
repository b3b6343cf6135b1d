"""Not drafting while it does not pay, whatever the scheduler (design contract 3)."""

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.cost import CostModel
from dspark.scheduling.fixed import settled_lengths
from dspark.scheduling.probe import Probe, ProbeSchedule
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.scheduling.scheduler import Scheduler

UNSEEN = -1
"""Number of a plan that the inner scheduler was not asked for."""

PROBE_WEIGHT = 0.5
"""What a probe counts against all that was known before it."""


class Parked:
    """Lets `inner` draft only while drafts pay: by tokens that past drafts really brought, and the cost of this batch.

    Running means over drafting requests (each moves them by `rate`) of verified and surviving drafts are all it knows,
    so that no draft of this round can bias it. While parked, `probes` says when to draft nevertheless.
    """

    def __init__(
        self, inner: Scheduler, cost: CostModel, rate: float = 0.05, probes: ProbeSchedule | None = None
    ) -> None:
        if not 0 < rate <= 1:
            raise ConfigError(f"rate is {rate}; expected a share above 0 and up to 1")
        self._inner = inner
        self._cost = cost
        self._rate = rate
        self._probe = Probe(probes or ProbeSchedule())
        self._parked = False
        self._means: tuple[float, float] | None = None

    def plan(self, batch: Batch) -> Plan:
        """The inner plan, or no drafts."""
        self._parked = not self._pays(batch)
        if not self._parked:
            self._probe.reset()
            return self._inner.plan(batch)
        return self._inner.plan(batch) if self._probe.due() else Plan(batch, UNSEEN, drafts=False)

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        """As the inner scheduler has it."""
        return settled_lengths(plan) if plan.number == UNSEEN else self._inner.lengths(plan, confidences)

    def observe(self, outcome: Outcome) -> None:
        """Update the means; tell the inner scheduler of its own rounds."""
        drafting = outcome.plan.batch.drafting
        if outcome.plan.number != UNSEEN:
            self._inner.observe(outcome)
        if not outcome.plan.drafts or not drafting:
            return
        seen = float(outcome.lengths.sum()) / drafting, float(outcome.accepted.sum()) / drafting
        known = self._means or seen
        share = max(1 - (1 - self._rate) ** drafting, PROBE_WEIGHT if self._parked else 0.0)
        self._means = known[0] + share * (seen[0] - known[0]), known[1] + share * (seen[1] - known[1])

    def _pays(self, batch: Batch) -> bool:
        if self._means is None or not batch.drafting:
            return True
        verified, accepted = (mean * batch.drafting for mean in self._means)
        most = min(round(verified), batch.room)
        seconds = self._cost.round_seconds(batch.requests, batch.drafting, most, batch.context)
        return bool((batch.requests + accepted) / seconds.drafted[most] > batch.requests / seconds.plain)
