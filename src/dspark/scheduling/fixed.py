"""The same number of drafts for every request."""

from itertools import count

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.admission import admit
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.round import Batch, Outcome, Plan


class FixedLength:
    """Verifies `length` drafts of each request (None: all), or the caps where they are lower; reads no confidence."""

    def __init__(self, length: int | None = None) -> None:
        if length is not None and length < 0:
            raise ConfigError(f"length is {length}; expected 0 or more drafts, or None for all")
        self._length = length
        self._numbers = count()

    def plan(self, batch: Batch) -> Plan:
        """Drafts unless the length or all caps are 0."""
        drafts = self._length != 0 and batch.room > 0
        return Plan(batch, next(self._numbers), drafts, full=self._length is None)

    def promise(self, batch: Batch) -> None:
        """Nobody asked whether it pays."""

    def recheck(self) -> None:
        """It never rests."""

    def lengths(self, plan: Plan, confidences: Floats | None = None) -> Ints:
        """`length` everywhere; where `max_tokens` is too small, the last positions go first."""
        return settled_lengths(plan) if plan.full or not plan.drafts else equal_lengths(plan.batch, self._length)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


def settled_lengths(plan: Plan) -> Ints:
    """Lengths [B] of a plan that leaves nothing to decide: none without drafting, otherwise all that fit."""
    if plan.uniform:
        return np.full(plan.batch.requests, plan.batch.width, dtype=np.int64)
    return equal_lengths(plan.batch, None if plan.drafts else 0)


def equal_lengths(batch: Batch, length: int | None) -> Ints:
    """The first `length` drafts [B] of each request (None: all) within caps and room; 0 leaves out floors as well."""
    wanted = batch.gamma if length is None else min(length, batch.gamma)
    if wanted == 0 or (batch.floors is None and batch.room == batch.requests * batch.gamma):
        return np.full(batch.requests, wanted, dtype=np.int64)
    first = np.zeros((batch.gamma, batch.requests), dtype=np.float32)
    first[:wanted] = 1.0
    return admit(batch, batch.value(first), budget=None)
