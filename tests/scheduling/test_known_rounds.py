"""Batches larger than any that was measured are said once, and not trimmed by cost."""

import warnings

import numpy as np
import pytest

from dspark.scheduling import Batch, CostTable, OnlineCost, Outcome, Scheduler, SchedulerConfig, build_scheduler

ONE_REQUEST = CostTable((1, 8), (0,), ((1.0, 3.0),), (1,), (0.01,))
GAMMA = 3


def play(scheduler: Scheduler, *sizes: int) -> None:
    for requests in sizes:
        plan = scheduler.plan(Batch(np.arange(requests), GAMMA))
        lengths = scheduler.lengths(plan, np.full((requests, GAMMA), 0.9))
        scheduler.observe(Outcome(plan, lengths, lengths))


@pytest.mark.parametrize("name", ["lagged", "prefix", "threshold", "fixed"])
def test_an_unmeasured_batch_is_warned_of_once(name: str) -> None:
    scheduler = build_scheduler(SchedulerConfig(name), OnlineCost(ONE_REQUEST))
    with pytest.warns(UserWarning, match="no draft time for 2 requests at once") as said:
        play(scheduler, 1, 2, 2, 3, 2)
    assert len(said) == 1


@pytest.mark.parametrize("name", ["lagged", "prefix"])
def test_it_is_not_trimmed_by_cost(name: str) -> None:
    scheduler = build_scheduler(SchedulerConfig(name, lag=1, park=False), ONE_REQUEST)
    batch, doubtful = Batch(np.arange(2), GAMMA), np.tile([1.0, 1.0, 0.001], (2, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert scheduler.lengths(scheduler.plan(batch), doubtful).tolist() == [GAMMA, GAMMA]
