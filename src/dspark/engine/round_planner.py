"""Who asks the scheduler for a round's plan, and when: as the round begins, or while the one before it runs."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from dspark.engine.engine_options import EngineOptions
from dspark.scheduling.cost import CostModel
from dspark.scheduling.registry import build_scheduler
from dspark.scheduling.round import Batch, Plan
from dspark.scheduling.scheduler import Scheduler


class RoundPlanner:
    """Plans each round as it begins: the reference loop."""

    looks_ahead = False
    """Whether it makes use of what it is told to expect."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    @classmethod
    def of(cls, options: EngineOptions, cost: CostModel | None) -> "RoundPlanner":
        """The planner that `options` ask for."""
        scheduler = build_scheduler(options.scheduler, cost)
        return AheadPlanner(scheduler) if options.overlap else cls(scheduler)

    def expect(self, batch: Batch | None) -> None:
        """The next round will probably be of `batch`."""
        del batch

    def plan(self, batch: Batch) -> Plan:
        """The plan of this round."""
        return self.scheduler.plan(batch)

    def promise(self, batch: Batch) -> float | None:
        """How many times as fast as plain decoding rounds of `batch` promise to be; None if nobody can tell."""
        self.settle()
        return self.scheduler.promise(batch)

    def recheck(self) -> None:
        """Let the scheduler try again soon, if it rests."""
        self.settle()
        self.scheduler.recheck()

    def settle(self) -> None:
        """Wait for whatever runs beside the engine; from here on the scheduler may be told of rounds."""


class AheadPlanner(RoundPlanner):
    """Plans the next round while the target runs (section 5.2): the overlapped loop.

    Such a plan rests on confidences that are a round older, and on the requests that were there. One that has left
    leaves its share of the budget to the others, one that has joined gets some of it; a plan none of whose requests is
    left is made anew. What joins and leaves is settled by rounds that are over, so no draft of this round has a say.
    """

    looks_ahead = True

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dspark-plan")
        self._ahead: Future[Plan] | None = None

    def expect(self, batch: Batch | None) -> None:
        """Begin to plan for `batch`."""
        self._ahead = None if batch is None else self._worker.submit(self.scheduler.plan, batch)

    def plan(self, batch: Batch) -> Plan:
        """The plan made ahead, for the requests of `batch`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.isin(batch.keys, ahead.result().batch.keys).any():
            return handed_on(ahead.result(), batch)
        return self.scheduler.plan(batch)

    def settle(self) -> None:
        """Wait for the plan."""
        if self._ahead is not None:
            try:
                self._ahead.result()
            except BaseException:
                self._ahead = None  # or every step would raise it again
                raise


def handed_on(plan: Plan, batch: Batch) -> Plan:
    """`plan` for the requests of `batch`: its decisions, within what `batch` has room for."""
    batch = batch.narrowed(max(plan.batch.width, batch.highest_floor))
    drafts = (plan.drafts and batch.room > 0) or batch.floor_tokens > 0
    budget = None if plan.budget is None else min(max(plan.budget, batch.floor_tokens, 1), batch.room)
    return replace(plan, batch=batch, drafts=drafts, budget=budget, seconds=None)
