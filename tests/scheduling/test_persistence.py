"""Deviations last as long as they have: nothing is believed of confidences that come and go."""

import numpy as np
import pytest

from dspark.scheduling import Batch, CostTable, LaggedScheduler, Outcome, SchedulerConfig, build_scheduler
from dspark.scheduling.history import SurvivalHistory
from dspark.scheduling.persistence import Persistence

GAMMA = 4
MEAN = np.array([0.6, 0.3])


def test_until_something_is_known_confidences_are_believed() -> None:
    survival = np.array([[0.9, 0.2], [0.8, 0.1]])
    assert Persistence().expected(MEAN, survival) is survival


@pytest.mark.parametrize("slope", [0.0, 0.4, 1.0])
def test_the_share_that_lasts_is_found(slope: float) -> None:
    random, persistence = np.random.default_rng(1), Persistence()
    for _ in range(600):
        before = random.normal(0, 0.2, (2, 8))
        persistence.learn(before, slope * before + random.normal(0, 0.1, (2, 8)))
    assert persistence.slope == pytest.approx(slope, abs=0.03)
    expected = persistence.expected(MEAN, np.array([[1.0], [0.0]]))
    assert expected == pytest.approx(MEAN[:, None] + slope * np.array([[0.4], [-0.3]]), abs=0.02)


def test_a_deviation_that_turns_round_counts_for_nothing() -> None:
    persistence, before = Persistence(), np.full((2, 3), 0.3)
    persistence.learn(before, -before)
    assert persistence.slope == 0.0


def test_one_user_whose_confidences_come_and_go_is_drafted_for_in_nearly_every_round() -> None:
    """Drafts pay on average (0.7 of blocks are sure, a round costs 1.3 plain ones), not by an unsure block alone."""
    cost = CostTable((1, 1 + GAMMA), (0,), ((1.0, 1.1),), (1,), (0.2,))
    random, scheduler, drafted = np.random.default_rng(2), LaggedScheduler(cost), []
    for _ in range(300):
        plan = scheduler.plan(Batch(np.array([7]), GAMMA))
        drafted.append(plan.drafts)
        c = np.full((1, GAMMA), 0.95 if random.random() < 0.7 else 0.05) if plan.drafts else None
        lengths = scheduler.lengths(plan, c)
        scheduler.observe(Outcome(plan, lengths, lengths))
    assert np.mean(drafted[50:]) > 0.95


def test_one_user_is_not_left_without_drafts_by_a_run_of_bad_luck() -> None:
    """Three blocks in four bring nothing, the rest all they have: 2 tokens for 1.4 plain rounds on average."""
    cost = CostTable((1, 1 + GAMMA), (0,), ((1.0, 1.1),), (1,), (0.3,))
    random, scheduler, drafted = np.random.default_rng(3), build_scheduler(SchedulerConfig("lagged"), cost), []
    for _ in range(1000):
        plan = scheduler.plan(Batch(np.array([7]), GAMMA))
        drafted.append(plan.drafts)
        lucky = random.random() < 0.25
        c = np.full((1, GAMMA), 0.9 if lucky else 0.3) if plan.drafts else None
        lengths = scheduler.lengths(plan, c)
        scheduler.observe(Outcome(plan, lengths, lengths if lucky else 0 * lengths))
    assert np.mean(drafted[100:]) > 0.97


def test_what_lies_behind_a_cap_is_no_bad_sign() -> None:
    """Half of the requests may draft one token only; nothing in the data lasts, and nothing is taken to."""
    random, scheduler = (
        np.random.default_rng(4),
        LaggedScheduler(CostTable((1, 99), (0,), ((1.0, 1.0),), (1, 8), (0.1, 0.1))),
    )
    caps = np.array([GAMMA, 1] * 4)
    for _ in range(200):
        plan = scheduler.plan(Batch(np.arange(8), GAMMA, caps=caps))
        scheduler.lengths(plan, np.where(np.arange(GAMMA) < caps[:, None], random.uniform(0.3, 1.0, (8, GAMMA)), 0.0))
    expected = scheduler._history.recall(200, np.arange(8), GAMMA)
    assert expected[1] == pytest.approx(0.65**2, abs=0.1)


def test_rounds_after_a_rest_move_the_mean_by_several_blocks_not_by_one() -> None:
    history = SurvivalHistory(lag=1)
    for number in range(50):
        history.record(number, np.array([7]), np.full((1, 1), 0.8))
        history.recall(number + 1, np.array([7]), 1)
    history.record(400, np.array([7]), np.zeros((1, 1)))
    mean = history.recall(401, np.array([8]), 1)[0, 0]
    assert mean == pytest.approx(0.8 * 7 / 8)
