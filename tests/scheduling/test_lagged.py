"""The budget follows old confidences, the allocation today's; slots and newcomers are told apart."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import ConfigError
from dspark.scheduling import Batch, CostTable, LaggedScheduler, Plan, ProbeSchedule
from dspark.scheduling.admission import top
from dspark.scheduling.history import SurvivalHistory

GAMMA = 3
KEYS = np.array([40, 41])
BATCH = Batch(KEYS, GAMMA)
SURE, LOST = np.ones((2, GAMMA)), np.full((2, GAMMA), 0.1)

STEEP = CostTable((1, 2, 8), (0,), ((1.0, 2.0, 3.5),), (1, 2), (0.01, 0.01))
"""One draft costs a quarter of a round: worth it only for drafts that survive."""


def play(scheduler: LaggedScheduler, *rounds: np.ndarray, batch: Batch = BATCH) -> list[Plan]:
    """Plans of consecutive rounds with these confidences."""
    plans = []
    for c in rounds:
        plans.append(scheduler.plan(batch))
        scheduler.lengths(plans[-1], c)
    return plans


def test_requests_count_as_confident_while_nothing_is_known() -> None:
    for plan in play(LaggedScheduler(STEEP), LOST, LOST):
        assert plan.drafts
        assert plan.full


def test_newcomers_are_taken_for_the_mean_of_earlier_rounds() -> None:
    history = SurvivalHistory(lag=2)
    history.record(0, np.array([7, 3]), np.array([[0.9, 0.3], [0.6, 0.2]]))
    assert history.recall(1, np.array([3, 9]), gamma=2).tolist() == [[1, 1], [1, 1]]
    assert history.recall(2, np.array([3, 9]), gamma=2) == pytest.approx(np.array([[0.3, 0.6], [0.2, 0.4]]))
    history.record(2, np.array([3, 9]), np.array([[0.3, 0.9], [0.2, 0.8]]))
    assert history.recall(4, np.array([5, 9]), gamma=2) == pytest.approx(np.array([[0.6, 0.9], [0.45, 0.8]]))


def test_budget_follows_the_confidences_of_two_rounds_ago() -> None:
    plans = play(LaggedScheduler(STEEP), LOST, SURE, SURE, SURE)
    assert [plan.drafts for plan in plans] == [True, True, False, True]


def test_lag_of_one_is_allowed_and_none_is_not() -> None:
    plans = play(LaggedScheduler(STEEP, lag=1), LOST, SURE, SURE)
    assert [plan.drafts for plan in plans] == [True, False, False]
    with pytest.raises(ConfigError, match="lag is 0"):
        LaggedScheduler(STEEP, lag=0)


def test_plans_do_not_change_when_rounds_are_reported_late() -> None:
    """An overlapped engine plans round t + 1 before it knows the confidences of round t."""
    random = np.random.default_rng(5)
    rounds = random.uniform(size=(8, 2, GAMMA))
    in_order = [plan.budget for plan in play(LaggedScheduler(STEEP), *rounds)]
    scheduler, late, waiting = LaggedScheduler(STEEP), [], None
    for c in rounds:
        plan = scheduler.plan(BATCH)
        late.append(plan.budget)
        if waiting is not None:
            scheduler.lengths(*waiting)
        waiting = plan, c
    assert late == in_order


def test_allocation_follows_todays_survival() -> None:
    lengths = LaggedScheduler(STEEP).lengths(Plan(BATCH, 0, budget=3), np.array([[0.5, 0.9, 0.9], [0.9, 0.9, 0.1]]))
    assert lengths.tolist() == [1, 2]


def test_ties_go_by_position_then_slot() -> None:
    scheduler = LaggedScheduler(STEEP)
    lengths = [scheduler.lengths(Plan(BATCH, 0, budget=k), SURE).tolist() for k in range(7)]
    assert lengths == [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]


def test_a_new_owner_of_a_slot_does_not_inherit_its_history() -> None:
    scheduler = LaggedScheduler(STEEP)
    play(scheduler, *[np.array([[0.1] * GAMMA, [1.0] * GAMMA])] * 3)
    assert not scheduler.plan(Batch(KEYS[:1], GAMMA)).drafts
    assert scheduler.plan(Batch(np.array([50]), GAMMA)).drafts


def test_requests_are_followed_when_they_change_slots() -> None:
    history = SurvivalHistory(lag=1)
    history.record(0, np.array([7, 3, 5]), np.array([[0.7, 0.3, 0.5], [0.6, 0.2, 0.4]]))
    history.record(1, np.array([5]), np.array([[0.55], [0.45]]))
    survival = history.recall(2, np.array([3, 5, 7]), gamma=2)
    assert survival == pytest.approx(np.array([[0.3, 0.55, 0.7], [0.2, 0.45, 0.6]]))
    assert history.recall(3, np.array([7, 3]), gamma=2) == pytest.approx(np.array([[0.7, 0.3], [0.6, 0.2]]))
    assert history.recall(4, np.array([7, 3]), gamma=3).tolist() == np.ones((3, 2)).tolist()


def test_parked_rounds_keep_what_is_known_until_a_probe() -> None:
    scheduler = LaggedScheduler(STEEP, probes=ProbeSchedule(first=4, longest=8, blocks=1))
    drafts = [plan.drafts for plan in play(scheduler, *[LOST] * 22)]
    assert drafts == [True, True, *[False] * 3, True, *[False] * 7, True, *[False] * 7, True]


def test_a_probe_that_pays_brings_drafting_back() -> None:
    scheduler = LaggedScheduler(STEEP, probes=ProbeSchedule(first=4, longest=8, blocks=1))
    plans = play(scheduler, *[LOST] * 5, *[SURE] * 5)
    assert [plan.drafts for plan in plans][5:] == [True, False, True, True, True]


def test_a_lighter_load_brings_drafting_back_at_once() -> None:
    flat_then_steep = CostTable((1, 4, 5, 40), (0,), ((1.0, 1.0, 1.3, 8.0),), (1, 8), (0.05, 0.05))
    many, one = np.arange(8), np.arange(1)
    scheduler = LaggedScheduler(flat_then_steep)
    plans = play(scheduler, *[np.full((8, GAMMA), 0.3)] * 4, batch=Batch(many, GAMMA))
    assert not plans[-1].drafts
    assert scheduler.plan(Batch(one, GAMMA)).drafts


def test_a_curve_inside_its_noise_is_no_ground_for_trimming() -> None:
    noisy = CostTable((1, 4, 8), (0,), ((1.0, 1.04, 1.01),), (1,), (0.0,), noise=0.05)
    plans = play(LaggedScheduler(noisy), *[LOST] * 4)
    assert all(plan.full for plan in plans)


def test_trimming_must_promise_the_least_gain() -> None:
    gentle = CostTable((1, 2, 8), (0,), ((1.0, 1.0, 1.06),), (1,), (0.0,))
    assert not play(LaggedScheduler(gentle), *[LOST] * 3)[-1].full
    assert play(LaggedScheduler(gentle, least_gain=0.1), *[LOST] * 3)[-1].full


def test_requests_that_do_not_draft_are_not_taken_for_known() -> None:
    scheduler = LaggedScheduler(STEEP)
    mixed = np.array([[0.1] * GAMMA, [1.0] * GAMMA])
    play(scheduler, mixed, mixed, mixed, batch=Batch(KEYS, GAMMA, caps=np.array([0, 3])))
    assert scheduler.plan(Batch(KEYS[:1], GAMMA)).drafts
    assert not scheduler.plan(Batch(KEYS, GAMMA, caps=np.array([0, 0]))).drafts


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_top_takes_what_a_sort_takes(columns: list[list[float]], count: int) -> None:
    value = np.sort(np.array(columns), axis=1)[:, ::-1].T
    order = sorted((-value[j, r], j, r) for j in range(3) for r in range(len(columns)) if value[j, r] > 0)
    expected = np.bincount([r for *_, r in order[:count]], minlength=len(columns))
    assert top(value, count).tolist() == expected.tolist()
    gains = -np.array([negated for negated, *_ in order])
    assert top(value, count, gains).tolist() == expected.tolist()


def few_plans(keep: int, batches: Sequence[Batch], chance: float = 0.9) -> list[bool]:
    """Whether each round of `batches` has the plan of the one before."""
    scheduler, kept = LaggedScheduler(CostTable((1, 64), (0,), ((1.0, 2.0),), (1, 16), (0.1, 0.1)), keep=keep), []
    for batch in batches:
        plan = scheduler.plan(batch)
        scheduler.lengths(plan, np.full((batch.requests, batch.gamma), chance, dtype=np.float32))
        kept.append(plan.kept)
    return kept


def test_a_plan_of_few_requests_serves_some_rounds_of_them() -> None:
    one, other = Batch(np.array([1, 2]), 4), Batch(np.array([1, 3]), 4)
    at_first = [False] * 3  # nothing is known yet of rounds two before
    assert few_plans(3, [one] * 10) == [*at_first, True, True, False, True, True, False, True]
    assert few_plans(1, [one] * 10) == [False] * 10
    assert few_plans(3, [*[one] * 4, *[other] * 3]) == [*at_first, True, False, True, True]
    for unlike in (replace(one, caps=np.array([4, 3])), replace(one, beside=1), replace(one, floors=np.array([1, 0]))):
        assert few_plans(3, [*[one] * 3, unlike, one]) == [False] * 5
    assert few_plans(3, [Batch(np.arange(9), 4)] * 10) == [False] * 10
    assert few_plans(3, [one] * 10, chance=0.0) == [False] * 10, "rests are planned anew"


@pytest.mark.parametrize("chance", [0.95, 0.4])
def test_rounds_of_a_kept_plan_are_remembered_like_others(chance: float) -> None:
    """A history that had missed them would move by another share."""
    table = CostTable((1, 64), (0,), ((1.0, 2.0),), (1, 16), (0.1, 0.1))
    random, batch = np.random.default_rng(0), Batch(np.arange(2), 4)
    kept, anew = LaggedScheduler(table, keep=4), LaggedScheduler(table)
    for _ in range(3 + 4 * 5):
        confidences = (chance * random.random((2, 4))).astype(np.float32) ** 0.2
        for scheduler in (kept, anew):
            scheduler.lengths(scheduler.plan(batch), confidences)
    assert kept.promise(batch) == pytest.approx(anew.promise(batch))
