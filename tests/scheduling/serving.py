"""Rounds of a busy engine in simulated seconds: requests come and go, drafts survive as calibrated confidences say."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dspark.scheduling import Batch, CostTable, Outcome, Scheduler

REQUESTS, GAMMA = 64, 7
COST = CostTable((REQUESTS, REQUESTS * (GAMMA + 1)), (0,), ((1.0, 3.0),), (1, REQUESTS), (0.2, 0.2))
"""1 second plain, 3.2 at full width: a width in between pays for confidences of 0.5, none for 0.2."""


@dataclass(frozen=True, slots=True)
class Load:
    """REQUESTS at a time, living `life` rounds in the mean; confidences are Beta with this `mean`, or `told` lies."""

    mean: float
    life: float = np.inf
    told: float | None = None

    def rounds(self, scheduler: Scheduler, count: int, seed: int = 0) -> Iterator[tuple[bool, float, float]]:
        """Whether each round drafts, its tokens and its seconds."""
        random = np.random.default_rng(seed)
        keys = np.arange(REQUESTS)
        for number in range(1, count + 1):
            keys = np.where(random.random(REQUESTS) < 1 / self.life, number * REQUESTS + np.arange(REQUESTS), keys)
            c = random.beta(4 * self.mean, 4 - 4 * self.mean, size=(REQUESTS, GAMMA))
            survive = np.logical_and.accumulate(random.random(c.shape) < c, axis=1).sum(axis=1)
            plan = scheduler.plan(Batch(keys, GAMMA))
            lengths = scheduler.lengths(plan, c if self.told is None else np.full(c.shape, self.told))
            outcome = Outcome(plan, lengths, np.minimum(survive, lengths))
            scheduler.observe(outcome)
            seconds = outcome.plan.batch.round_seconds(COST)
            time = seconds.drafted[lengths.sum()] if plan.drafts else seconds.plain
            yield plan.drafts, REQUESTS + float(outcome.accepted.sum()), float(time)

    def speedup(self, scheduler: Scheduler, count: int = 200, seed: int = 0) -> float:
        """Tokens per second over those of plain decoding."""
        _, tokens, seconds = np.array(list(self.rounds(scheduler, count, seed))).T
        return float(tokens.sum() / seconds.sum() / REQUESTS)
