"""The scheduler of section 5.2: a budget from confidences of two rounds ago, spent on today's best candidates."""

from dataclasses import replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from dspark.errors import ConfigError
from dspark.scheduling.admission import admit
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.budget import Prospects, prospects, search
from dspark.scheduling.cost import CostModel, RoundSeconds
from dspark.scheduling.fixed import settled_lengths
from dspark.scheduling.history import SurvivalHistory
from dspark.scheduling.known_rounds import KnownRounds
from dspark.scheduling.probe import TELLING, Probe, ProbeSchedule
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.scheduling.slots import SlotChoice
from dspark.scheduling.survival import checked_confidences, survivals

LEAST_LOOK, LOOK_AHEAD = 128, 1.1
"""The search sorts a tenth more candidates than the last budget, and so many: mostly enough, in half the time."""


class LaggedScheduler:
    """Searches all budgets, and not drafting at all, so that cliffs of a jagged cost curve do not trap it.

    The budget depends on rounds `lag` ago or older, hence on no draft of this round. A request without such rounds is
    taken for the mean of the others, or for confident while nothing is known. Trimming must promise `least_gain`
    (relative) over verifying everything, which needs no ragged batch; where the cost curve is no clearer than its
    noise, nothing is trimmed. When not drafting is best, `probes` says when to look again; a change of load is noticed
    at once. A round with floors drafts in any case, with the best budget that holds them. Blocks are as wide as pays.
    A plan that drafts serves `keep` rounds of the same few requests: planning takes time, too.
    """

    def __init__(
        self,
        cost: CostModel,
        lag: int = 2,
        least_gain: float = 0.0,
        probes: ProbeSchedule | None = None,
        keep: int = 1,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"keep is {keep}; expected a number of rounds that a plan serves, 1 or more")
        if not 0 <= least_gain < 1:
            raise ConfigError(f"least_gain is {least_gain}; expected a share from 0 to below 1")
        self._rounds = KnownRounds(cost)
        self._history = SurvivalHistory(lag)
        self._slots = SlotChoice(self._rounds)
        self._least_gain = least_gain
        self._probe = Probe(probes or ProbeSchedule())
        self._look = LEAST_LOOK
        self._numbers = count()
        self._keep, self._left, self._planned_at = keep, 0, -1
        self._unread: list[tuple[Plan, Floats]] = []
        self._asked: Batch | None = None
        self._kept: Plan | None = None

    def plan(self, batch: Batch) -> Plan:
        """The budget with the most expected tokens per second of the whole round."""
        number = next(self._numbers)
        if self._left and self._kept is not None and _alike(batch, self._asked):
            self._left -= 1
            return replace(self._kept, number=number, kept=True)
        self._asked, self._kept = batch, self._planned(batch, number)
        lasts = self._history.known and self._kept.drafts and not self._kept.probe and batch.requests <= TELLING
        self._left = self._keep - 1 if lasts else 0
        return self._kept

    def _planned(self, batch: Batch, number: int) -> Plan:
        if batch.room == 0:
            return Plan(batch, number, drafts=False)
        for plan, confidences in self._unread:
            self._record(plan, survivals(confidences, plan.batch))
        self._unread.clear()
        survival = self._history.recall(number, batch.keys, batch.gamma)
        batch = self._slots.narrowed(batch, self._history.typical(batch.gamma), number - self._planned_at)
        self._planned_at = number
        value = batch.value(survival)
        seconds = self._rounds.seconds(batch)
        ahead, budget = self._ahead(batch, value, seconds)
        pays = bool((ahead.full if budget is None else ahead.drafted[budget]) > ahead.plain)
        drafts = pays or batch.floor_tokens > 0
        probe = not drafts and self._probe.due(batch.drafting)
        if pays:
            self._probe.reset()
        if budget is not None:
            budget = max(budget + batch.floor_tokens, 1)  # a probe that verifies nothing would teach nothing
        return Plan(batch, number, drafts or probe, full=budget is None, budget=budget, probe=probe, seconds=seconds)

    def promise(self, batch: Batch) -> float | None:
        """By the mean survival, blocks as wide as pays; the most there could be while no round is known."""
        return self._slots.promise(batch, self._history.typical(batch.gamma))

    def recheck(self) -> None:
        """The next probe comes as soon as the first one did."""
        self._probe.reset()

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        """The top-K of today's candidates, K the budget."""
        batch = plan.batch
        if not plan.drafts:
            return settled_lengths(plan)
        if plan.full:
            self._unread.append((plan, checked_confidences(confidences, batch)))
            return settled_lengths(plan)
        survival = survivals(confidences, batch)
        self._record(plan, survival)
        return admit(batch, batch.value(survival), plan.budget)

    def _record(self, plan: Plan, survival: Floats) -> None:
        batch = plan.batch
        telling = _telling(batch)
        self._history.record(plan.number, batch.keys[telling], survival[: batch.width, telling], batch.gamma)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn: the confidences were seen when lengths were asked for."""

    def _ahead(self, batch: Batch, value: Floats, seconds: RoundSeconds) -> tuple[Prospects, int | None]:
        """Prospects, and the candidates to admit beside the floors: None for everything."""
        if not seconds.resolved:
            return prospects(batch, value, seconds), None
        ahead = search(batch, value, seconds, self._look, self._least_gain)
        budget = ahead.budget(self._least_gain)
        self._look = LEAST_LOOK + int(LOOK_AHEAD * (batch.room if budget is None else budget))
        return ahead, budget


def _telling(batch: Batch) -> NDArray[np.bool_] | slice:
    """Requests whose survivals are worth remembering: behind a cap there are none, and that is no bad sign."""
    if batch.caps is None:
        return slice(None)
    whole: NDArray[np.bool_] = batch.caps == batch.width
    return whole if whole.any() else batch.caps > 0


def _alike(batch: Batch, before: Batch | None) -> bool:
    """Whether a plan for `before` serves `batch`: the same requests with the same room, and nothing else to mind."""
    if before is None or (batch.requests, batch.room, batch.beside) != (before.requests, before.room, before.beside):
        return False
    special = (batch.floors, batch.weights, before.floors, before.weights)
    if batch.gamma != before.gamma or any(rows is not None for rows in special):
        return False
    return _equal(batch.keys, before.keys) and _equal(batch.caps, before.caps)


def _equal(some: Ints | None, others: Ints | None) -> bool:
    if some is None or others is None:
        return some is others
    return some.dtype == others.dtype and some.tobytes() == others.tobytes()  # a fifth of array_equal's time
