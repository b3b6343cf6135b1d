"""Drafting stops while it does not pay, by what it really brought, and comes back."""

import numpy as np
import pytest

from dspark.errors import ConfigError
from dspark.scheduling import Batch, CostTable, FixedLength, LaggedScheduler, Outcome, Parked, Plan, ProbeSchedule
from dspark.scheduling.draft_yield import DraftYield

BATCH = Batch(np.arange(4), gamma=2)
TABLE = CostTable((1, 4, 12), (0,), ((1.0, 1.0, 2.0),), (4,), (0.2,))
"""Four requests: 1 second plain, 2.2 with two drafts each: these pay from 4.8 surviving drafts a round on."""


def play(scheduler: Parked, rounds: int, accepted: int, batch: Batch = BATCH) -> list[bool]:
    """Whether consecutive rounds draft when each drafting request has `accepted` drafts survive."""
    drafted = []
    for _ in range(rounds):
        plan = scheduler.plan(batch)
        lengths = scheduler.lengths(plan, None)
        scheduler.observe(Outcome(plan, lengths, np.minimum(lengths, accepted)))
        drafted.append(bool(lengths.any()))
    return drafted


def parked(rate: float = 1.0) -> Parked:
    return Parked(FixedLength(), TABLE, rate, ProbeSchedule(first=3, longest=6, blocks=4))


def test_parks_after_a_round_that_did_not_pay_and_probes_ever_less_often() -> None:
    assert play(parked(), 17, accepted=1) == [True, *[False] * 2, True, *[False] * 5, True, *[False] * 5, True, False]


def test_goes_on_while_it_pays() -> None:
    assert all(play(parked(), 20, accepted=2))


@pytest.mark.parametrize(("share", "drafts"), [(0.99, True), (1.01, False)])
def test_a_gain_of_a_few_percent_is_none(share: float, drafts: bool) -> None:
    """Both of its two drafts survive in every round: 3 tokens, in less than 3 / 1.03 of the time of one, or in more."""
    seconds = share * 3 / 1.03
    table = CostTable((1, 3), (0,), ((1.0, seconds),), (1,), (0.0,))
    scheduler = Parked(FixedLength(), table, rate=1.0)
    assert play(scheduler, 3, accepted=2, batch=Batch(np.arange(1), gamma=2)) == [True, drafts, drafts]


def test_returns_when_a_probe_pays() -> None:
    scheduler = parked()
    play(scheduler, 2, accepted=0)
    assert play(scheduler, 6, accepted=2) == [False, True, *[True] * 4]


def test_one_bad_round_does_not_park_a_good_drafter() -> None:
    scheduler = parked(rate=0.02)
    play(scheduler, 20, accepted=2)
    assert all(play(scheduler, 1, accepted=0) + play(scheduler, 1, accepted=2))


def test_load_decides_with_what_is_known() -> None:
    """The same acceptance pays at one request, where verifying more rows costs nothing."""
    scheduler = parked()
    play(scheduler, 2, accepted=1)
    assert not any(play(scheduler, 1, accepted=1))
    assert all(play(scheduler, 3, accepted=1, batch=Batch(np.arange(1), gamma=2)))


def test_plain_rounds_teach_nothing() -> None:
    scheduler = parked()
    nothing = Batch(np.arange(4), gamma=2, caps=np.zeros(4, dtype=np.int64))
    assert not any(play(scheduler, 5, accepted=2, batch=nothing))
    assert all(play(scheduler, 5, accepted=2))


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_refuses_a_rate_that_is_no_share(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate is"):
        parked(rate)


def test_refuses_probes_that_never_come() -> None:
    with pytest.raises(ConfigError, match="first is 0"):
        ProbeSchedule(first=0)


def test_what_a_probe_shows_counts_when_the_next_round_is_planned_before_it_is_reported() -> None:
    scheduler = parked(rate=0.02)
    play(scheduler, 3, accepted=1)
    probe = scheduler.plan(BATCH)
    assert probe.probe
    assert not scheduler.plan(BATCH).drafts
    lengths = scheduler.lengths(probe, None)
    scheduler.observe(Outcome(probe, lengths, lengths))
    assert all(play(scheduler, 3, accepted=2))


def test_drafts_that_are_usually_left_out_survive_as_those_at_their_position() -> None:
    drafted = DraftYield(0.05, ProbeSchedule())
    drafted.observe(Outcome(Plan(BATCH, 0), lengths=np.array([1, 1, 0, 0]), accepted=np.array([1, 0, 0, 0])))
    widths = (0, 0.25, 0.5, 1, 1.5, 2)
    assert [drafted.surviving(width) for width in widths] == pytest.approx([0, 0.125, 0.25, 0.5, 1, 1.5])
    drafted.observe(Outcome(Plan(BATCH, 1), lengths=np.full(4, 2), accepted=np.array([2, 1, 1, 1])))
    assert drafted.width == pytest.approx((0.5 + 2) / 2)
    assert drafted.surviving(1.25) == pytest.approx((0.25 + 1.25) / 2)


def test_a_plan_is_judged_at_its_own_width() -> None:
    """Of two drafts only the first survives: full width does not pay, half of it does."""
    steep = CostTable((1, 4, 8, 12), (0,), ((1.0, 1.0, 1.2, 1.85),), (4,), (0.2,))
    drafted = DraftYield(0.05, ProbeSchedule())
    lengths, survivors = np.full(4, 2), np.full(4, 1)
    drafted.observe(Outcome(Plan(BATCH, 0), lengths, survivors))
    assert [drafted.surviving(width) for width in (0, 0.5, 1, 2)] == pytest.approx([0, 0.5, 1, 1])
    scheduler = Parked(LaggedScheduler(steep, lag=1), steep)
    plans = []
    for _ in range(3):
        plans.append(scheduler.plan(BATCH))
        lengths = scheduler.lengths(plans[-1], np.tile([1.0, 0.1], (4, 1)))
        scheduler.observe(Outcome(plans[-1], lengths, np.minimum(lengths, 1)))
    assert [(plan.drafts, plan.budget) for plan in plans] == [(True, None), (True, 4), (True, 4)]


def test_a_promise_is_no_better_than_what_drafts_brought() -> None:
    """All of two drafts are promised: 12 tokens in 2.2 seconds, where a plain round has 4 in one. None survived."""
    scheduler = Parked(LaggedScheduler(TABLE), TABLE, rate=1.0)
    assert scheduler.promise(BATCH) == pytest.approx(12 / 2.2 / 4)
    plan = scheduler.plan(BATCH)
    lengths = scheduler.lengths(plan, np.ones((4, 2), dtype=np.float32))
    scheduler.observe(Outcome(plan, lengths, np.zeros_like(lengths)))
    assert scheduler.promise(BATCH) == pytest.approx(1 / TABLE.round_seconds(4, 4, 8, 0, share=0.0).drafted[4])
