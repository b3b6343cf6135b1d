"""A static threshold on each confidence, as DeepSpec's evaluation has it (paper, Figure 5)."""

from itertools import count

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.admission import admit
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.fixed import settled_lengths
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.scheduling.survival import checked_confidences, survivals


class StaticThreshold:
    """Verifies each block up to the first draft with c < `threshold`; knows nothing of load or cost."""

    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold is {threshold}; expected a confidence from 0 to 1")
        self._threshold = threshold
        self._numbers = count()

    def plan(self, batch: Batch) -> Plan:
        """Always drafts."""
        return Plan(batch, next(self._numbers), drafts=batch.room > 0)

    def promise(self, batch: Batch) -> None:
        """Nobody asked whether it pays."""

    def recheck(self) -> None:
        """It never rests."""

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        """Prefixes of confident drafts; where `max_tokens` is too small, the last positions go first."""
        if plan.full or not plan.drafts:
            return settled_lengths(plan)
        confident = checked_confidences(confidences, plan.batch) >= self._threshold
        passing = survivals(confident.astype(np.float32), plan.batch)
        return admit(plan.batch, plan.batch.value(passing), budget=None)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
