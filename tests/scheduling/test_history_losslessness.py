"""Decoding round after round with a scheduler that remembers leaves the law of the text alone, by enumeration."""

from collections.abc import Callable
from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch

from dspark.core.block_verification import BlockVerification
from dspark.core.hashed_law import HashedLaw
from dspark.core.output_law import Law, Tokens, total_variation
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.scheduling import (
    Batch,
    CostTable,
    LaggedScheduler,
    Outcome,
    Parked,
    Plan,
    PrefixScheduler,
    ProbeSchedule,
    Scheduler,
    StaticThreshold,
)
from dspark.scheduling.arrays import Floats, Ints

V, GAMMA, HORIZON = 2, 2, 3
BATCH = Batch(np.array([0]), GAMMA)
TABLE = CostTable((1, 2, 3), (0,), ((1.0, 1.55, 1.7),), (1,), (0.1,))
CLIFF = CostTable((1, 2, 3), (0,), ((1.0, 1.2, 1.7),), (1,), (0.1,))
"""The second draft costs most: confident requests have it verified, average ones do not."""

GENTLE = CostTable((1, 2, 3), (0,), ((1.0, 1.2, 1.4),), (1,), (0.1,))
"""Drafting pays or does not by the second draft, which the first one changes."""

PROBES = ProbeSchedule(first=1, longest=2)

TARGET, DRAFT, CONFIDENCE = (HashedLaw(V, seed, order=2, scale=1.5, dtype=torch.float64) for seed in (1, 2, 3))


def fork(scheduler: Scheduler) -> Scheduler:
    """A copy with its own memory and the same tables."""
    return deepcopy(scheduler, {id(table): table for table in (TABLE, CLIFF, GENTLE)})


def decode(scheduler: Scheduler, rule: RejectionRule, lengths_seen: set[int], context: Tokens = ()) -> Law:
    """Law of HORIZON tokens after `context`; the scheduler is copied wherever fates part."""
    if len(context) >= HORIZON:
        return {context[:HORIZON]: 1.0}
    law: Law = {}
    for block in product(range(V), repeat=GAMMA):
        q = torch.stack([DRAFT((*context, *block[:j])).softmax(0) for j in range(GAMMA)])
        c = np.array([[float(CONFIDENCE((*context, *block[:j]))[0].sigmoid()) for j in range(GAMMA)]])
        chance = float(q[0, block[0]] * q[1, block[1]])
        planned = fork(scheduler)
        plan = planned.plan(BATCH)
        lengths = planned.lengths(plan, c)
        lengths_seen.add(int(lengths[0]))
        drafts = block[: int(lengths[0])]
        p = torch.stack([TARGET((*context, *drafts[:i])).softmax(0) for i in range(len(drafts) + 1)])
        q = q[: len(drafts)]
        for accepted, share in enumerate(rule.accepted_law(rule.thresholds(p, q, drafts))):
            after = fork(planned)
            after.observe(Outcome(plan, lengths, np.array([accepted])))
            closing = rule.correction(p, q, drafts, accepted)
            for token in range(V):
                for text, rest in decode(after, rule, lengths_seen, (*context, *drafts[:accepted], token)).items():
                    law[text] = law.get(text, 0.0) + chance * share * float(closing[token]) * rest
    return law


def alone(context: Tokens = ()) -> Law:
    """Law of HORIZON tokens when the target decodes alone."""
    if len(context) == HORIZON:
        return {context: 1.0}
    p = TARGET(context).softmax(0)
    return {text: float(p[v]) * rest for v in range(V) for text, rest in alone((*context, v)).items()}


SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "lagged": lambda: LaggedScheduler(TABLE, lag=1, probes=PROBES),
    "lagged by two": lambda: LaggedScheduler(CLIFF, lag=2, probes=PROBES),
    "lagged, plans kept": lambda: LaggedScheduler(CLIFF, lag=1, probes=PROBES, keep=2),
    "parked, plans kept": lambda: Parked(
        LaggedScheduler(CLIFF, lag=1, probes=PROBES, keep=2), CLIFF, rate=1.0, probes=PROBES
    ),
    "parked threshold": lambda: Parked(StaticThreshold(0.4), TABLE, rate=1.0, probes=PROBES),
    "parked prefix": lambda: Parked(PrefixScheduler(GENTLE), GENTLE, rate=0.5, probes=PROBES),
}


@pytest.mark.parametrize("rule", [TokenRejection(), BlockVerification()], ids=["token", "block"])
@pytest.mark.parametrize("build", SCHEDULERS.values(), ids=SCHEDULERS)
def test_memory_does_not_bias(build: Callable[[], Scheduler], rule: RejectionRule) -> None:
    lengths_seen: set[int] = set()
    law = decode(build(), rule, lengths_seen)
    assert len(lengths_seen) > 1
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert total_variation(law, alone()) <= 1e-12


class ParkedByThisRound(Parked):
    """Parks when this round's confidences do not promise to pay."""

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        expected = 1 + np.cumprod(confidences, axis=1).sum()
        seconds = plan.batch.round_seconds(GENTLE)
        if expected / seconds.drafted[-1] <= 1 / seconds.plain:
            return np.zeros(1, dtype=np.int64)
        return super().lengths(plan, confidences)


def test_parking_by_this_rounds_confidences_is_caught() -> None:
    scheduler = ParkedByThisRound(PrefixScheduler(GENTLE), GENTLE, rate=0.5, probes=PROBES)
    assert total_variation(decode(scheduler, TokenRejection(), set()), alone()) == pytest.approx(0.078, abs=1e-3)
