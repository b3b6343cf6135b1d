"""Every scheduler leaves the law of the text alone, to 1e-12 by enumeration; the same test sees those that do not."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dspark.core.block_verification import BlockVerification
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.scheduling import (
    Batch,
    CostTable,
    FixedLength,
    LaggedScheduler,
    Outcome,
    Parked,
    Plan,
    PrefixScheduler,
    Scheduler,
    StaticThreshold,
)
from dspark.scheduling.admission import admit, descending
from dspark.scheduling.arrays import Ints
from dspark.scheduling.budget import highest_peak, throughputs
from dspark.scheduling.survival import survivals
from tests.scheduling.output_laws import (
    GAMMA,
    REQUESTS,
    Array,
    Instance,
    Request,
    Tokens,
    instances,
    jagged_seconds,
)

EXACT = 1e-12
DIGITS = 6e-4
"""Distances of caught rules are those of docs/scheduling.md, to three digits."""

COUNT = 24
RULES: list[RejectionRule] = [TokenRejection(), BlockVerification()]
both_rules = pytest.mark.parametrize("rule", RULES, ids=["token", "block"])
KEYS = np.arange(REQUESTS)

Confidences = Callable[[Request, Tokens], list[float]]


def head(request: Request, block: Tokens) -> list[float]:
    """What a confidence head says: nothing about the token itself."""
    return request.confidences(block)


def own_probability(request: Request, block: Tokens) -> list[float]:
    return request.own_probabilities(block)


def table(seed: int, draft: float = 0.0) -> CostTable:
    seconds = jagged_seconds(np.random.default_rng(1000 + seed))
    tokens = tuple(range(1, len(seconds) + 1))
    return CostTable(tokens, (0,), (tuple(seconds.tolist()),), (1, 2), (draft, draft))


def batch(seed: int, **terms: object) -> Batch:
    return Batch(KEYS, GAMMA, **terms)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Survey:
    """All instances: the largest distance, and in how many of them this round's drafts decide on lengths."""

    worst: float
    varying: int


def survey(
    rule: RejectionRule,
    scheduler: Callable[[int], Scheduler],
    confidences: Confidences = head,
    terms: Callable[[int], Batch] = batch,
) -> Survey:
    """In two of three instances, the scheduler has random rounds behind it."""
    judged = [
        judge(instance, scheduler(seed), confidences, terms(seed), primed=2 * (seed % 3), seed=seed)
        for seed, instance in enumerate(instances(rule, COUNT))
    ]
    distances, varying = zip(*judged, strict=True)
    return Survey(max(distances), sum(varying))


def judge(
    instance: Instance, scheduler: Scheduler, confidences: Confidences, batch: Batch, primed: int, seed: int
) -> tuple[float, bool]:
    """The distance to the target's law, and whether lengths vary with the drafts."""
    random = np.random.default_rng(2000 + seed)
    for _ in range(primed):
        plan = scheduler.plan(batch)
        lengths = scheduler.lengths(plan, random.choice([0.5, 0.75, 1.0], size=(REQUESTS, GAMMA)))
        scheduler.observe(Outcome(plan, lengths, random.binomial(lengths, 0.6)))
    plan = scheduler.plan(batch)
    seen: set[tuple[int, int]] = set()

    def decide(x: Tokens, y: Tokens) -> tuple[int, int]:
        c = np.array([confidences(r, b) for r, b in zip(instance.requests, (x, y), strict=True)])
        first, second = scheduler.lengths(plan, c)
        seen.add((int(first), int(second)))
        return int(first), int(second)

    return instance.distance(decide), len(seen) > 1


def fixed(seed: int) -> Scheduler:
    return FixedLength(seed % (GAMMA + 1))


def threshold(seed: int) -> Scheduler:
    return StaticThreshold((0.3, 0.6, 1.0)[seed % 3])


def prefix(seed: int) -> Scheduler:
    return PrefixScheduler(table(seed))


def lagged(seed: int) -> Scheduler:
    return LaggedScheduler(table(seed))


def parked_prefix(seed: int) -> Scheduler:
    return Parked(prefix(seed), table(seed, draft=0.2))


def parked_lagged(seed: int) -> Scheduler:
    return Parked(LaggedScheduler(table(seed, draft=0.1)), table(seed, draft=0.1))


def narrow_lagged(seed: int) -> Scheduler:
    """Late slots take long, and every round looks how many pay."""
    return LaggedScheduler(replace(table(seed, draft=0.15), first_draft_seconds=(0.0, 0.0)))


OURS = [fixed, threshold, prefix, lagged, parked_prefix, parked_lagged, narrow_lagged]
every_scheduler = pytest.mark.parametrize("scheduler", OURS, ids=lambda scheduler: scheduler.__name__)


@pytest.fixture(autouse=True)
def looks_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds are behind those that are judged; each of them may change the width of blocks."""
    monkeypatch.setattr("dspark.scheduling.slots.LOOK_EVERY", 1)


def test_blocks_of_the_narrow_scheduler_are_narrow_by_what_it_has_seen() -> None:
    """Or else these tests would not be about width."""
    widths = set[tuple[int, int]]()
    for seed in range(COUNT):
        random, scheduler = np.random.default_rng(seed), narrow_lagged(seed)
        for number in range(5):
            plan = scheduler.plan(batch(seed))
            widths.add((number, plan.batch.width))
            scheduler.lengths(plan, random.choice([0.5, 0.75, 1.0], size=(REQUESTS, GAMMA)))
    assert {width for number, width in widths if number == 4} == {1, 2, 3}


@both_rules
@every_scheduler
def test_text_follows_the_target(rule: RejectionRule, scheduler: Callable[[int], Scheduler]) -> None:
    found = survey(rule, scheduler)
    assert found.worst <= EXACT
    assert found.varying >= {fixed: 0, narrow_lagged: 5}.get(scheduler, 8)  # narrow blocks leave less to decide


def tight(seed: int) -> Batch:
    """Caps, floors, priorities and a limit on rows, all at once or in turn."""
    random = np.random.default_rng(3000 + seed)
    floors = random.integers(0, 2, REQUESTS)
    return Batch(
        KEYS,
        GAMMA,
        caps=random.integers(2, GAMMA + 1, REQUESTS),
        floors=floors if seed % 2 else None,
        weights=random.choice([0.5, 1.0, 2.0], REQUESTS) if seed % 3 else None,
        max_tokens=None if seed % 4 else int(random.integers(REQUESTS + floors.sum(), REQUESTS * (GAMMA + 1))),
    )


@both_rules
@every_scheduler
def test_terms_of_requests_do_not_bias(rule: RejectionRule, scheduler: Callable[[int], Scheduler]) -> None:
    found = survey(rule, scheduler, terms=tight)
    assert found.worst <= EXACT
    assert found.varying >= (0 if scheduler is fixed else 3)


OWN = [(threshold, 0.239, 0.322), (prefix, 0.139, 0.139), (lagged, 0.068, 0.093)]


@pytest.mark.parametrize(("scheduler", "token", "block"), OWN, ids=lambda value: getattr(value, "__name__", ""))
def test_own_probability_as_confidence_is_caught(
    scheduler: Callable[[int], Scheduler], token: float, block: float
) -> None:
    found = [survey(rule, scheduler, confidences=own_probability).worst for rule in RULES]
    assert found == pytest.approx([token, block], abs=DIGITS)


class Spoilt(LaggedScheduler):
    """A base of rules that look too far: the plan is sound, the lengths are not."""

    def __init__(self, seed: int) -> None:
        super().__init__(table(seed))
        self.seconds = table(seed).verify(REQUESTS, REQUESTS * (GAMMA + 1))

    def plan(self, batch: Batch) -> Plan:
        return Plan(batch, 0)


class GlobalArgmax(Spoilt):
    """The best budget by this round's confidences: the paper's appendix A."""

    def lengths(self, plan: Plan, confidences: Array) -> Ints:
        value = survivals(confidences, plan.batch)
        gains = descending(value)
        return admit(plan.batch, value, highest_peak(throughputs(gains, REQUESTS, self.seconds)))


class SumOfLiveSurvivals(Spoilt):
    """As many drafts as are expected to survive."""

    def lengths(self, plan: Plan, confidences: Array) -> Ints:
        value = survivals(confidences, plan.batch)
        return admit(plan.batch, value, round(float(value.sum())))


class LiveBreakEven(Spoilt):
    """All drafts or none, by what this round's drafts are expected to bring."""

    def lengths(self, plan: Plan, confidences: Array) -> Ints:
        expected = REQUESTS + survivals(confidences, plan.batch).sum()
        pays = expected / self.seconds[-1] > REQUESTS / self.seconds[0]
        return np.full(REQUESTS, GAMMA if pays else 0)


class TiesByWholeBlock(Spoilt):
    """A fair budget, but equal candidates go by the survival of their whole block."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.budget = 1 + seed % (REQUESTS * GAMMA - 1)

    def lengths(self, plan: Plan, confidences: Array) -> Ints:
        a = survivals(confidences, plan.batch)
        order = sorted((-a[j, r], -a[-1, r], j, r) for j in range(GAMMA) for r in range(REQUESTS) if a[j, r] > 0)
        return np.bincount([r for *_, r in order[: self.budget]], minlength=REQUESTS)


SPOILT = [
    (GlobalArgmax, 0.073, 0.073),
    (SumOfLiveSurvivals, 0.039, 0.039),
    (LiveBreakEven, 0.177, 0.177),
    (TiesByWholeBlock, 0.043, 0.043),
]


@pytest.mark.parametrize(("spoilt", "token", "block"), SPOILT, ids=lambda value: getattr(value, "__name__", ""))
def test_anticipating_rules_are_caught(spoilt: type[Spoilt], token: float, block: float) -> None:
    found = [survey(rule, spoilt).worst for rule in RULES]
    assert found == pytest.approx([token, block], abs=DIGITS)
