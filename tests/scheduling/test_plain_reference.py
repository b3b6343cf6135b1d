"""Every decision of every scheduler is that of plain loops over sorted lists: ties, terms, partial looks."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.scheduling import Batch, CostTable, FixedLength, LaggedScheduler, Plan, PrefixScheduler, StaticThreshold
from dspark.scheduling import lagged as lagged_module
from dspark.scheduling.budget import search
from dspark.scheduling.survival import survivals

Candidate = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class Case:
    """A batch, its confidences [B, gamma], and seconds [room + 1] of 0 ... room drafts; all exact in binary."""

    batch: Batch
    c: np.ndarray
    seconds: list[float]

    @property
    def table(self) -> CostTable:
        """The cost model whose rounds take `seconds`; drafting costs nothing."""
        first = self.batch.requests
        tokens = tuple(range(first, first + len(self.seconds)))
        return CostTable(tokens, (0,), (tuple(self.seconds),), (1,), (0.0,))

    def row(self, terms: np.ndarray | None, otherwise: float) -> list[float]:
        return [otherwise] * self.batch.requests if terms is None else terms.tolist()

    def worth(self, c: np.ndarray) -> dict[tuple[int, int], float]:
        """Weighted survival of draft (j, r), j = 1 ... cap."""
        caps, weights = self.row(self.batch.caps, self.batch.gamma), self.row(self.batch.weights, 1.0)
        products = [list(accumulate(row, lambda a, b: a * b)) for row in c.tolist()]
        return {
            (j, r): weights[r] * products[r][j - 1]
            for r in range(self.batch.requests)
            for j in range(1, int(caps[r]) + 1)
        }

    def candidates(self, c: np.ndarray) -> list[Candidate]:
        """(-value, j, r) of all that is no floor and worth something, in the order of admission."""
        floors = self.row(self.batch.floors, 0)
        return sorted((-a, j, r) for (j, r), a in self.worth(c).items() if j > floors[r] and a > 0)

    def thetas(self) -> list[float]:
        """Expected tokens per second with the floors and 0, 1, ... candidates."""
        floors = self.row(self.batch.floors, 0)
        sure = sum(a for (j, r), a in self.worth(self.c).items() if j <= floors[r])
        expected = self.batch.anchor_value + sure
        time = self.seconds[self.batch.floor_tokens :]
        gains = [-negated for negated, *_ in self.candidates(self.c)]
        return [tokens / t for tokens, t in zip(accumulate(gains, initial=expected), time, strict=False)]

    def full(self) -> float:
        """Expected tokens per second when everything that fits is verified."""
        thetas = self.thetas()
        return thetas[-1] * self.seconds[self.batch.floor_tokens + len(thetas) - 1] / self.seconds[-1]

    def admitted(self, c: np.ndarray, budget: int) -> list[int]:
        """Lengths with the floors and the best candidates that the budget holds."""
        lengths = [int(floor) for floor in self.row(self.batch.floors, 0)]
        for *_, r in self.candidates(c)[: max(min(budget, self.batch.room) - sum(lengths), 0)]:
            lengths[r] += 1
        return lengths


exact = st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0, 1.0])
cliffs = st.sampled_from([1.0, 0.5, 2.0, 4.0])
"""Seconds and confidences whose products, sums and quotients are exact, so that ties are ties."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    requests, gamma = draw(st.integers(1, 5)), draw(st.integers(1, 4))

    def rows(entries: st.SearchStrategy) -> np.ndarray | None:
        return draw(st.none() | st.lists(entries, min_size=requests, max_size=requests).map(np.array))

    caps, weights = rows(st.integers(0, gamma)), rows(st.sampled_from([0.5, 1.0, 2.0]))
    floors = rows(st.integers(0, 1))
    if floors is not None and caps is not None:
        floors = np.minimum(floors, caps)
    least = requests + (0 if floors is None else int(floors.sum()))
    most = draw(st.none() | st.integers(least, max(least, requests * (gamma + 1))))
    batch = Batch(np.arange(requests), gamma, caps=caps, floors=floors, weights=weights, max_tokens=most)
    c = draw(st.lists(st.lists(exact, min_size=gamma, max_size=gamma), min_size=requests, max_size=requests))
    seconds = draw(st.lists(cliffs, min_size=batch.room + 1, max_size=batch.room + 1))
    return Case(batch, np.array(c), seconds)


@given(cases(), st.integers(1, 20), st.sampled_from([0.0, 0.0, 0.25]))
def test_a_search_that_looks_at_few_finds_the_highest_peak_of_all(case: Case, look: int, least_gain: float) -> None:
    if not case.batch.room:
        return
    value = case.batch.value(survivals(case.c, case.batch))
    ahead = search(case.batch, value, case.batch.round_seconds(case.table), look, least_gain)
    thetas = case.thetas()
    assert ahead.drafted.tolist() == thetas[: len(ahead.drafted)]
    best = thetas.index(max(thetas))
    assert ahead.budget(least_gain) == (best if thetas[best] * (1 - least_gain) > case.full() else None)


@pytest.mark.parametrize(
    ("seconds", "look", "least_gain", "budget"),
    [
        ([1.0, 1.0, 4.0, 0.5, 4.0], 1, 0.0, 3),  # a hole beyond the look
        ([1.0, 1.0, 1.0, 4.0, 2.0], 2, 0.0, 2),  # what was looked at holds the peak, 4.0
        ([1.0, 1.0, 1.0, 4.0, 2.0], 2, 0.4, None),  # but everything, 2.5, comes within the least gain of it
    ],
)
def test_what_lies_beyond_the_look_counts(
    seconds: list[float], look: int, least_gain: float, budget: int | None
) -> None:
    case = Case(Batch(np.arange(2), 2), np.array([[1.0, 0.5], [1.0, 0.5]]), seconds)
    value = survivals(case.c, case.batch)
    ahead = search(case.batch, value, case.batch.round_seconds(case.table), look, least_gain)
    assert ahead.budget(least_gain) == budget


@given(cases())
def test_lagged_is_the_plain_search_and_the_plain_top_k(case: Case) -> None:
    batch = case.batch
    scheduler = LaggedScheduler(case.table, lag=1)
    if not batch.room:
        assert not scheduler.plan(batch).drafts
        return
    scheduler.lengths(Plan(batch, number=-1), case.c)
    plan = scheduler.plan(batch)
    thetas = case.thetas()
    best = thetas.index(max(thetas))
    trims = thetas[best] > case.full()
    assert plan.full is not trims
    pays = max(thetas[best], case.full()) > batch.anchor_value / case.seconds[0]
    assert plan.drafts is (pays or batch.floor_tokens > 0)
    assert plan.budget == (max(best + batch.floor_tokens, 1) if trims else None)
    if plan.drafts and trims:
        other = case.c[::-1]
        assert scheduler.lengths(plan, other).tolist() == case.admitted(other, plan.budget)


@given(cases())
def test_prefix_is_the_plain_early_stop(case: Case) -> None:
    scheduler = PrefixScheduler(case.table)
    plan = scheduler.plan(case.batch)
    if not plan.drafts:
        return
    thetas = case.thetas()
    stop = next((k for k in range(1, len(thetas)) if thetas[k] <= thetas[k - 1]), len(thetas)) - 1
    expected = case.admitted(case.c, case.batch.floor_tokens + stop)
    assert scheduler.lengths(plan, case.c).tolist() == expected


@given(cases(), st.sampled_from([0.5, 1.0]), st.integers(1, 4))
def test_threshold_and_fixed_admit_by_worth_position_and_slot(case: Case, threshold: float, length: int) -> None:
    if not case.batch.room:
        return
    confident = (case.c >= threshold).astype(float)
    first = np.tile(np.arange(case.batch.gamma) < length, (case.batch.requests, 1)).astype(float)
    for scheduler, kept in ((StaticThreshold(threshold), confident), (FixedLength(length), first)):
        plan = scheduler.plan(case.batch)
        assert scheduler.lengths(plan, case.c).tolist() == case.admitted(kept, case.batch.room)


def many(steps: np.ndarray) -> Case:
    """300 requests with gamma 6 and many ties, on a curve of `steps` after each number of drafts."""
    random = np.random.default_rng(0)
    c = random.choice([0.25, 0.5, 1.0, 1.0, 1.0], size=(300, 6))
    return Case(Batch(np.arange(300), 6), c, (1.0 + np.cumsum(steps)).tolist())


SIZE = np.arange(300 * 6 + 1)
CURVES = {
    "slope": np.full(len(SIZE), 2.0**-9),
    "stairs": np.where(SIZE % 64 == 63, 0.125, 0.0),
    "cliff and plateau": np.where(SIZE == 200, 0.5, 2.0**-14),
    "flat after a cliff": np.where(SIZE == 100, 1.0, 0.0),
}


@pytest.mark.parametrize("steps", CURVES.values(), ids=CURVES)
def test_large_rounds_are_decided_alike_round_after_round(steps: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look follows the last budget: too short at first, then mostly long enough."""
    case = many(steps)
    thetas = case.thetas()
    best = thetas.index(max(thetas))
    monkeypatch.setattr(lagged_module, "LEAST_LOOK", 32)
    scheduler = LaggedScheduler(case.table, lag=1)
    scheduler.lengths(Plan(case.batch, number=-1), case.c)
    for _ in range(3):
        plan = scheduler.plan(case.batch)
        assert plan.budget == (best if thetas[best] > case.full() else None)
        if plan.budget is not None and plan.drafts:
            assert scheduler.lengths(plan, case.c).tolist() == case.admitted(case.c, best)
