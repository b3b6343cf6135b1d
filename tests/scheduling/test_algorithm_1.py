"""Algorithm 1: the paper's example to the digit, the printed text against the vectorised form, brute force."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.core.output_law import Scheme, Tokens, output_law
from dspark.core.rejection import TokenRejection
from dspark.scheduling import Batch, CostTable, LaggedScheduler, Plan, PrefixScheduler
from dspark.scheduling.algorithm_1 import algorithm_1
from dspark.scheduling.budget import highest_peak, prospects
from dspark.scheduling.prefix import FIRST_LOOK
from dspark.scheduling.survival import survivals

SPS = {1: 1.0, 2: 0.5, 3: 0.45}
C_1, C_2 = 0.8, {0: 0.9, 1: 0.0}
"""c_2 after the first draft: A is token 0, B token 1."""

TABLE = CostTable.from_steps_per_second(SPS)
ONE = Batch(np.array([7]), gamma=2)


def appendix_a(verified: Callable[[Tokens], int]) -> dict[Tokens, float]:
    """Law of the first token: p_t = (0.7, 0.3), p_d = (0.5, 0.5), `verified(drafts)` of two drafts judged."""
    import torch

    p_t, p_d = torch.tensor([0.7, 0.3], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    scheme = Scheme(lambda _: p_t, lambda *_: p_d, TokenRejection(), 2, verified=lambda _, drafts: verified(drafts))
    return output_law(scheme, horizon=1)


def confidences(drafts: Tokens) -> np.ndarray:
    return np.array([[C_1, C_2[drafts[0]]]])


def global_search(drafts: Tokens) -> int:
    ahead = prospects(ONE, survivals(confidences(drafts), ONE), ONE.round_seconds(TABLE))
    return highest_peak(ahead.drafted)


def early_stop(drafts: Tokens) -> int:
    scheduler = PrefixScheduler(TABLE)
    return int(scheduler.lengths(scheduler.plan(ONE), confidences(drafts))[0])


def test_appendix_a_numbers() -> None:
    """Theta_0 = 1, Theta_1 = 0.9; after A a_2 = 0.72 and Theta_2 = 1.134, after B a_2 = 0 and Theta_2 = 0.81."""
    seconds = ONE.round_seconds(TABLE)
    after_a = prospects(ONE, survivals(confidences((0,)), ONE), seconds)
    after_b = prospects(ONE, survivals(confidences((1,)), ONE), seconds)
    assert survivals(confidences((0,)), ONE).ravel() == pytest.approx([0.8, 0.72])
    assert after_a.drafted == pytest.approx([1.0, 0.9, 1.134])
    assert after_b.drafted == pytest.approx([1.0, 0.9])  # a_2 = 0 is no candidate
    assert after_b.full == pytest.approx(0.81)
    assert [global_search((0,)), global_search((1,))] == [2, 0]
    assert [early_stop((0,)), early_stop((1,))] == [0, 0]
    assert min(0.7, 0.5) + min(0.3, 0.5) == pytest.approx(C_1)  # c_1 is the true acceptance


def test_appendix_a_laws() -> None:
    """The global search gives (0.85, 0.15), the early stop and every fixed budget the target's (0.7, 0.3)."""
    assert appendix_a(global_search) == pytest.approx({(0,): 0.85, (1,): 0.15}, abs=1e-12)
    assert appendix_a(early_stop) == pytest.approx({(0,): 0.7, (1,): 0.3}, abs=1e-12)
    scheduler = LaggedScheduler(TABLE)
    for budget in (0, 1, 2):
        plan = Plan(ONE, number=0, budget=budget)
        law = appendix_a(lambda drafts, plan=plan: int(scheduler.lengths(plan, confidences(drafts))[0]))
        assert law == pytest.approx({(0,): 0.7, (1,): 0.3}, abs=1e-12)


def test_appendix_a_never_reads_the_second_confidence() -> None:
    read: list[tuple[int, int]] = []

    def spy(r: int, j: int) -> float:
        read.append((r, j))
        return C_1

    assert algorithm_1(spy, SPS.__getitem__, requests=1, gamma=2) == [0]
    assert read == [(0, 1)]


exact = st.sampled_from([0.0, 0.25, 0.5, 0.5, 0.75, 1.0, 1.0])
"""Confidences whose products and sums are exact, so that ties are ties."""


@st.composite
def rounds(draw: st.DrawFn) -> tuple[np.ndarray, dict[int, float]]:
    """Confidences [B, gamma] and SPS at every number of tokens, all exact, curves jagged."""
    requests, gamma = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    c = np.array(draw(st.lists(st.lists(exact, min_size=gamma, max_size=gamma), min_size=requests, max_size=requests)))
    tokens = range(1, requests * (gamma + 1) + 1)
    return c, {b: draw(st.sampled_from([1.0, 0.5, 0.25, 0.5, 2.0])) for b in tokens}


@given(rounds())
def test_vectorised_form_is_the_printed_one(case: tuple[np.ndarray, dict[int, float]]) -> None:
    c, sps = case
    requests, gamma = c.shape
    scheduler = PrefixScheduler(CostTable.from_steps_per_second(sps))
    lengths = scheduler.lengths(scheduler.plan(Batch(np.arange(requests), gamma)), c)
    assert lengths.tolist() == algorithm_1(lambda r, j: float(c[r, j - 1]), sps.__getitem__, requests, gamma)


def test_search_goes_on_beyond_its_first_look() -> None:
    c = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 1.0], size=(500, 6))
    sps = {b: 1.0 if b < 2300 else 0.5 for b in range(1, 500 * 7 + 1)}
    scheduler = PrefixScheduler(CostTable.from_steps_per_second(sps))
    lengths = scheduler.lengths(scheduler.plan(Batch(np.arange(500), 6)), c)
    assert lengths.tolist() == algorithm_1(lambda r, j: float(c[r, j - 1]), sps.__getitem__, 500, 6)
    assert lengths.sum() > FIRST_LOOK


@given(rounds(), st.randoms(use_true_random=False))
def test_confidences_beyond_the_first_refusal_do_not_matter(case: tuple[np.ndarray, dict[int, float]], random) -> None:
    c, sps = case
    scheduler = PrefixScheduler(CostTable.from_steps_per_second(sps))
    plan = scheduler.plan(Batch(np.arange(len(c)), c.shape[1]))
    lengths = scheduler.lengths(plan, c)
    other = c.copy()
    for r, length in enumerate(lengths):  # c[r, length] was judged and refused: it depends on the drafts before it
        other[r, length + 1 :] = [random.choice([0.0, 0.3, 1.0]) for _ in other[r, length + 1 :]]
    assert scheduler.lengths(plan, other).tolist() == lengths.tolist()


def brute_force(c: np.ndarray, seconds: np.ndarray) -> float:
    """max of tau / seconds[drafts] over all lengths whose drafts have a > 0, and over verifying everything."""
    a = np.cumprod(np.float32(c), axis=1, dtype=np.float32)
    choices = [range(np.count_nonzero(row) + 1) for row in a]
    best = (len(c) + a.sum()) / seconds[c.size]
    for lengths in product(*choices):
        tau = len(c) + sum(row[:n].sum() for row, n in zip(a, lengths, strict=True))
        best = max(best, tau / seconds[sum(lengths)])
    return float(best)


def throughput(c: np.ndarray, lengths: np.ndarray, seconds: np.ndarray) -> float:
    a = np.cumprod(c, axis=1)
    return (len(c) + sum(a[r, :n].sum() for r, n in enumerate(lengths))) / seconds[lengths.sum()]


def table_of(requests: int, seconds: np.ndarray) -> CostTable:
    """`seconds` [n + 1] of 0 ... n drafts; before them, as long as the first."""
    tokens = tuple(range(requests, requests + len(seconds)))
    return CostTable(tokens, (0,), (tuple(seconds.tolist()),), (1,), (0.0,))


small = st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: st.tuples(
        st.lists(st.lists(st.floats(0, 1), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]),
        st.lists(st.floats(0, 1), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]),
    )
)


@given(small)
def test_early_stop_is_optimal_on_unimodal_curves(case: tuple[list[list[float]], list[float]]) -> None:
    """Convex seconds and falling gains give one peak."""
    c, steps = np.array(case[0]), np.sort(case[1])
    seconds = 1 + np.concatenate([[0.0], np.cumsum(steps)])
    scheduler = PrefixScheduler(table_of(len(c), seconds))
    lengths = scheduler.lengths(scheduler.plan(Batch(np.arange(len(c)), c.shape[1])), c)
    assert throughput(c, lengths, seconds) == pytest.approx(brute_force(c, seconds), rel=1e-6)


@given(small, st.floats(0, 1))
def test_global_search_is_optimal_on_any_curve(case: tuple[list[list[float]], list[float]], draft: float) -> None:
    c, seconds = np.array(case[0]), 0.1 + np.array([0.5, *case[1]])
    batch = Batch(np.arange(len(c)), c.shape[1])
    scheduler = LaggedScheduler(replace(table_of(len(c), seconds), requests=(len(c),), draft_seconds=(draft,)), lag=1)
    scheduler.lengths(Plan(batch, number=-1), c)  # a round before, with the same confidences
    plan = scheduler.plan(batch)
    plain, best = len(c) / seconds[0], brute_force(c, seconds + draft)
    if not plan.drafts:
        assert plain >= best * (1 - 1e-6)
    else:
        lengths = scheduler.lengths(plan, c)
        assert throughput(c, lengths, seconds + draft) == pytest.approx(best, rel=1e-6)
        assert best > plain * (1 - 1e-6)
