"""Two requests round after round, one leaving before the other: memory and shared budgets leave the joint law alone."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from dspark.core.block_verification import BlockVerification
from dspark.core.hashed_law import HashedLaw
from dspark.core.output_law import Tokens
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
)
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.fixed import settled_lengths

V, GAMMA, HORIZON = 2, 2, 2
TABLE = CostTable((1, 2, 3, 4, 5, 6), (0,), ((1.0, 1.05, 1.2, 1.45, 1.5, 1.8),), (1, 2), (0.05, 0.1))
PROBES = ProbeSchedule(first=1, longest=2)
Texts = tuple[Tokens, Tokens]
JointLaw = dict[Texts, float]
Fate = tuple[float, int, Tokens]
"""Probability, accepted drafts, and the text so far."""


def laws(seed: int, scale: float) -> tuple[HashedLaw, HashedLaw]:
    """One law for each request."""
    first, second = (HashedLaw(V, seed + k, order=2, scale=scale, dtype=torch.float64) for k in (0, 10))
    return first, second


TARGET, DRAFT = laws(1, 1.5), laws(2, 1.5)
CONFIDENCES = [laws(seed, 3.0) for seed in (3, 5)]
"""Two instances: heads in which c_2 differs much with the first draft, near break-even."""

Head = tuple[HashedLaw, HashedLaw]


def confidences(head: Head, r: int, text: Tokens, block: Tokens) -> list[float]:
    """c_1 ... c_gamma of request r: c_j reads the drafts before j only."""
    return [float(head[r]((*text, *block[:j]))[0].sigmoid()) for j in range(GAMMA)]


def fates(rule: RejectionRule, r: int, text: Tokens, drafts: Tokens) -> list[Fate]:
    """What verifying `drafts` of request r can end in."""
    p = torch.stack([TARGET[r]((*text, *drafts[:i])).softmax(0) for i in range(len(drafts) + 1)])
    q = torch.stack([DRAFT[r]((*text, *drafts[:i])).softmax(0) for i in range(len(drafts))]) if drafts else p[:0]
    ends: list[Fate] = []
    for accepted, share in enumerate(rule.accepted_law(rule.thresholds(p, q, drafts))):
        closing = rule.correction(p, q, drafts, accepted)
        for token in range(V):
            ends.append((share * float(closing[token]), accepted, (*text, *drafts[:accepted], token)[:HORIZON]))
    return ends


def decode(scheduler: Scheduler, rule: RejectionRule, head: Head, texts: Texts, lengths_seen: set[Tokens]) -> JointLaw:
    """Joint law of HORIZON tokens of both after `texts`; the scheduler is copied wherever fates part."""
    live = [r for r in range(2) if len(texts[r]) < HORIZON]
    if not live:
        return {texts: 1.0}
    law: JointLaw = {}
    for blocks in product(product(range(V), repeat=GAMMA), repeat=len(live)):
        planned = deepcopy(scheduler, {id(TABLE): TABLE})
        plan = planned.plan(Batch(np.array(live), GAMMA))
        c = [confidences(head, r, texts[r], block) for r, block in zip(live, blocks, strict=True)]
        lengths = planned.lengths(plan, np.array(c))
        lengths_seen.add(tuple(lengths.tolist()))
        chance = float(np.prod([drafted(r, texts[r], block) for r, block in zip(live, blocks, strict=True)]))
        ends = [fates(rule, r, texts[r], b[:n]) for r, b, n in zip(live, blocks, lengths.tolist(), strict=True)]
        for joint in product(*ends):
            share = chance * float(np.prod([fate[0] for fate in joint]))
            if share == 0:
                continue
            after = deepcopy(planned, {id(TABLE): TABLE})
            after.observe(Outcome(plan, lengths, np.array([fate[1] for fate in joint])))
            then = dict(zip(live, (fate[2] for fate in joint), strict=True))
            both = then.get(0, texts[0]), then.get(1, texts[1])
            for end, rest in decode(after, rule, head, both, lengths_seen).items():
                law[end] = law.get(end, 0.0) + share * rest
    return law


def drafted(r: int, text: Tokens, block: Tokens) -> float:
    """Probability that request r drafts `block` after `text`."""
    return float(np.prod([float(DRAFT[r]((*text, *block[:j])).softmax(0)[block[j]]) for j in range(GAMMA)]))


def alone(r: int, text: Tokens) -> float:
    """Probability of `text` when the target decodes request r alone."""
    return float(np.prod([float(TARGET[r](text[:k]).softmax(0)[text[k]]) for k in range(HORIZON)]))


def worst(build: Callable[[], Scheduler], rule: RejectionRule, lengths_seen: set[Tokens]) -> float:
    """The largest distance of the instances."""
    return max(distance(build(), rule, head, lengths_seen) for head in CONFIDENCES)


def distance(scheduler: Scheduler, rule: RejectionRule, head: Head, lengths_seen: set[Tokens]) -> float:
    """Total variation between the joint law and the targets', after rounds that leave the scheduler in two minds."""
    for c, accepted in ((0.9, 2), (0.5, 1), (0.7, 1)):
        plan = scheduler.plan(Batch(np.arange(2), GAMMA))
        lengths = scheduler.lengths(plan, np.full((2, GAMMA), c))
        scheduler.observe(Outcome(plan, lengths, np.minimum(lengths, accepted)))
    law = decode(scheduler, rule, head, ((), ()), lengths_seen)
    texts = list(product(product(range(V), repeat=HORIZON), repeat=2))
    return sum(abs(law.get((x, y), 0.0) - alone(0, x) * alone(1, y)) for x, y in texts) / 2


class ParkedByThisRound(Parked):
    """Parks when this round's confidences do not promise to pay."""

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        expected = plan.batch.requests + np.cumprod(confidences, axis=1).sum()
        seconds = plan.batch.round_seconds(TABLE)
        if expected / seconds.drafted[-1] <= plan.batch.requests / seconds.plain:
            return settled_lengths(replace(plan, drafts=False))
        return super().lengths(plan, confidences)


class BudgetOfThisRound(LaggedScheduler):
    """Plans again once the confidences are known."""

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        fresh = LaggedScheduler(TABLE, lag=1)
        fresh.lengths(replace(plan, drafts=True, number=-1), confidences)
        return super().lengths(fresh.plan(plan.batch), confidences)


def parked_prefix() -> Scheduler:
    return Parked(PrefixScheduler(TABLE), TABLE, rate=0.5, probes=PROBES)


def lagged() -> Scheduler:
    return LaggedScheduler(TABLE, lag=1, probes=PROBES)


def parked_lagged() -> Scheduler:
    return Parked(LaggedScheduler(TABLE, lag=2, probes=PROBES), TABLE, rate=0.5, probes=PROBES)


@pytest.mark.parametrize("rule", [TokenRejection(), BlockVerification()], ids=["token", "block"])
@pytest.mark.parametrize("build", [parked_prefix, lagged, parked_lagged])
def test_memory_of_both_does_not_bias(build: Callable[[], Scheduler], rule: RejectionRule) -> None:
    lengths_seen: set[Tokens] = set()
    assert worst(build, rule, lengths_seen) <= 1e-12
    assert len([lengths for lengths in lengths_seen if len(lengths) == 2]) > 1  # drafts decide on lengths
    assert any(len(lengths) == 1 for lengths in lengths_seen)  # and one request outlives the other


def parked_by_this_round() -> Scheduler:
    return ParkedByThisRound(PrefixScheduler(TABLE), TABLE, rate=0.5, probes=PROBES)


def budget_of_this_round() -> Scheduler:
    return BudgetOfThisRound(TABLE, lag=1, probes=PROBES)


@pytest.mark.parametrize("build", [parked_by_this_round, budget_of_this_round])
def test_memory_that_ends_too_late_is_caught(build: Callable[[], Scheduler]) -> None:
    assert worst(build, TokenRejection(), set()) >= 1e-3
