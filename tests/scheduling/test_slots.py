"""Blocks are as wide as pays, whatever the batch holds; what was not drafted is expected to be like what was."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dspark.engine.round_planner import handed_on
from dspark.errors import ConfigError
from dspark.scheduling import (
    Batch,
    CostTable,
    FixedLength,
    LaggedScheduler,
    Parked,
    Plan,
    PrefixScheduler,
    StaticThreshold,
)
from dspark.scheduling.budget import prospects
from dspark.scheduling.history import SurvivalHistory
from dspark.scheduling.known_rounds import KnownRounds
from dspark.scheduling.slots import LOOK_EVERY, SlotChoice

GAMMA = 4
TABLE = CostTable((1, 40), (0,), ((1.0, 4.9),), (1, 8), (0.4, 2.4), first_draft_seconds=(0.1, 0.3))
"""A row takes 0.1; a block of one request 0.1 to 0.4, of eight 0.3 to 2.4."""


def rate(batch: Batch, survival: np.ndarray, table: CostTable = TABLE) -> float:
    return float(prospects(batch, batch.value(survival), batch.round_seconds(table)).drafted.max())


def falling(chance: float) -> np.ndarray:
    """Survivals [gamma] of drafts that survive with this chance each."""
    return np.cumprod(np.full(GAMMA, chance))


def widest(rates: dict[int, float], requests: int) -> int:
    """Of those close to the highest rate, 1 % for one request; where rounding decides, hypothesis looks elsewhere."""
    enough = 1 - 0.01 / requests
    shares = {width: rate / max(rates.values()) for width, rate in rates.items()}
    assume(all(abs(share - enough) > 1e-9 for share in shares.values()))
    return max(width for width, share in shares.items() if share >= enough)


@given(st.integers(1, 8), st.floats(0.05, 0.99), st.floats(0.0, 1.0), st.integers(0, 2), st.sampled_from([0, 30]))
def test_the_width_is_the_widest_of_the_best(requests: int, mean: float, first: float, floor: int, beside: int) -> None:
    """Whether or not prompts are read beside the round that is looked at."""
    table = replace(TABLE, first_draft_seconds=(0.4 * first, 2.4 * first))
    floors = np.full(requests, floor) if floor else None
    batch = Batch(np.arange(requests), GAMMA, floors=floors)
    looked_at = replace(batch, beside=beside)
    width = SlotChoice(KnownRounds(table)).narrowed(looked_at, falling(mean)).width
    rates = {
        one: rate(batch.narrowed(one), np.repeat(falling(mean)[:, None], requests, 1), table)
        for one in range(max(floor, 1), GAMMA + 1)
    }
    assert width == widest(rates, requests)


@pytest.mark.filterwarnings("ignore:the cost table has no draft time")
@pytest.mark.parametrize(
    ("table", "why"),
    [
        (replace(TABLE, noise=5.0, first_draft_seconds=()), "nobody timed shorter blocks, and rows seem to be free"),
        (replace(TABLE, requests=(1, 7)), "so many requests were never timed drafting"),
    ],
)
def test_without_grounds_blocks_are_whole(table: CostTable, why: str) -> None:
    batch = Batch(np.arange(8), GAMMA)
    assert SlotChoice(KnownRounds(TABLE)).narrowed(batch, falling(0.3)).width < GAMMA
    assert SlotChoice(KnownRounds(table)).narrowed(batch, falling(0.3)).width == GAMMA, why


@given(st.integers(1, 8), st.floats(0.05, 0.99))
def test_where_rows_cost_no_more_than_noise_the_time_of_drafting_decides(requests: int, mean: float) -> None:
    table = replace(TABLE, noise=5.0)
    batch = Batch(np.arange(requests), GAMMA)
    verify = np.mean(batch.round_seconds(replace(TABLE, noise=0.0)).drafted) - TABLE.draft(requests)
    rates = {
        slots: requests
        * (1 + falling(mean)[:slots].sum())
        / (verify + TABLE.draft(requests, (slots - 1) / (GAMMA - 1)))
        for slots in range(1, GAMMA + 1)
    }
    assert SlotChoice(KnownRounds(table)).narrowed(batch, falling(mean)).width == widest(rates, requests)


def test_it_looks_again_after_a_while_and_at_once_where_the_load_is_another() -> None:
    choice, few, many = SlotChoice(KnownRounds(TABLE)), Batch(np.arange(4), GAMMA), Batch(np.arange(5), GAMMA)
    sure, lost = falling(0.99), falling(0.1)
    assert choice.narrowed(few, lost).width == 1
    for _ in range(LOOK_EVERY - 1):
        assert choice.narrowed(few, sure).width == 1
    assert choice.narrowed(few, sure).width == GAMMA
    assert choice.narrowed(many, lost).width == GAMMA  # a quarter more is not yet another load
    assert choice.narrowed(Batch(np.arange(5), 2), lost[:2]).width == 1
    assert choice.narrowed(few, sure).width == GAMMA
    assert choice.narrowed(Batch(np.arange(6), GAMMA), lost).width == 1


def test_narrow_blocks_cost_what_lies_between_one_slot_and_all() -> None:
    batch = Batch(np.arange(8), GAMMA)
    seconds = [batch.narrowed(width).round_seconds(TABLE) for width in (1, 2, 3, 4)]
    assert [each.drafted[0] - each.plain for each in seconds] == pytest.approx([0.3, 1.0, 1.7, 2.4])
    assert [len(each.drafted) for each in seconds] == [9, 17, 25, 33]
    assert batch.narrowed(GAMMA) is batch


def test_whether_costs_are_clear_does_not_depend_on_the_width() -> None:
    """Few sizes would look flat where all together do not."""
    noisy = replace(TABLE, tokens=(1, 2, 40), verify_seconds=((1.0, 1.1, 4.9),), noise=0.2)
    batch = Batch(np.arange(1), GAMMA)
    assert Batch(np.arange(1), GAMMA, caps=np.array([1])).round_seconds(noisy).resolved is False
    resolved = batch.round_seconds(noisy).resolved
    assert [batch.narrowed(width).round_seconds(noisy).resolved for width in (1, 2, 3)] == [resolved] * 3


def test_beside_prompts_a_draft_costs_what_a_row_costs_there() -> None:
    bent = CostTable((1, 10, 40), (0,), ((1.0, 1.0, 7.0),), (1, 8), (0.0, 0.0))
    alone, beside = Batch(np.arange(2), GAMMA), Batch(np.arange(2), GAMMA, beside=20)
    assert alone.round_seconds(bent).drafted == pytest.approx([1.0] * 9)
    assert beside.round_seconds(bent).drafted == pytest.approx([1.0 + 0.2 * k for k in range(9)])
    assert beside.round_seconds(bent).plain == 1.0
    steps_down = CostTable((1, 10, 11, 40), (0,), ((1.0, 5.0, 2.0, 2.0),), (1, 8), (0.5, 0.5))
    seconds = Batch(np.arange(2), GAMMA, beside=8).round_seconds(steps_down)
    assert (seconds.drafted >= seconds.plain + 0.5).all()  # no draft takes less than none
    assert LaggedScheduler(bent).plan(alone).drafts
    with pytest.raises(ConfigError, match="beside is -1"):
        Batch(np.arange(2), GAMMA, beside=-1)


def test_widths_that_cannot_be_are_refused() -> None:
    for slots, caps in ((0, None), (5, None), (2, None), (2, np.array([3]))):
        with pytest.raises(ConfigError, match="slots are"):
            Batch(np.arange(1), GAMMA, caps=caps, slots=slots)


def test_unseen_slots_change_as_the_last_seen_one_does() -> None:
    history, keys = SurvivalHistory(lag=1), np.array([1, 2])
    history.record(0, keys, np.array([[0.8, 0.4], [0.4, 0.2], [0.2, 0.1]]))
    history.record(1, keys, np.array([[0.9, 0.6]]), gamma=3)
    assert history.recall(1, keys, 3) == pytest.approx(np.array([[0.8, 0.4], [0.4, 0.2], [0.2, 0.1]]))
    assert history.typical(3) == pytest.approx([0.6, 0.3, 0.15])
    found = history.recall(2, np.array([1, 2, 3]), 3)  # a third, who is taken for the mean
    chance = 0.675 * 0.5 / 0.6  # half of the drafts survived the next slot, where 0.6 did the first, now 0.675
    mean = 0.675 * np.array([1, chance, chance**2])
    assert found[:, 2] == pytest.approx(mean)
    assert history.typical(3) == pytest.approx(mean)
    slope = (found[0, 0] - mean[0]) / (0.9 - mean[0])
    expected = np.array([0.9, 0.9 * chance, 0.9 * chance**2])
    assert found[:, 0] == pytest.approx(mean + slope * (expected - mean))


def test_where_nothing_is_known_all_slots_are_like_the_last() -> None:
    history = SurvivalHistory(lag=1)
    assert history.typical(3).tolist() == [1.0, 1.0, 1.0]
    history.record(0, np.array([1]), np.array([[0.5]]), gamma=3)
    assert history.recall(1, np.array([1]), 3)[:, 0].tolist() == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("requests", [1, 16])
def test_guesses_are_no_evidence_for_themselves(requests: int) -> None:
    """Confidences are 0.2 or 1, at random: a few hundred rounds of one slot leave the unseen ones where they were."""
    random, keys = np.random.default_rng(0), np.arange(requests)
    history = SurvivalHistory(lag=1)
    for number in range(600):
        c = random.choice([0.2, 1.0], size=(GAMMA, requests))
        slots = GAMMA if number < 200 else 1
        history.record(number, keys, np.cumprod(c, axis=0)[:slots], GAMMA)
        history.recall(number + 1, keys, GAMMA)
        if number == 199:
            before = history.typical(GAMMA)
    assert history.typical(GAMMA)[-1] == pytest.approx(before[-1], rel=0.7)
    assert history.typical(GAMMA)[-1] < 2 * 0.6**GAMMA


def test_the_width_stays_where_the_text_does() -> None:
    random, scheduler, batch = np.random.default_rng(1), LaggedScheduler(TABLE, lag=1), Batch(np.arange(4), GAMMA)
    widths = []
    for _ in range(30 * LOOK_EVERY):
        plan = scheduler.plan(batch)
        widths.append(plan.batch.width)
        c = random.choice([0.2, 1.0], size=(4, GAMMA)) * (np.arange(GAMMA) < plan.batch.width)
        scheduler.lengths(plan, c.astype(np.float32))
    later = widths[10 * LOOK_EVERY :]
    assert max(later) - min(later) <= 1


def test_an_easier_text_widens_the_blocks() -> None:
    """Of narrow blocks only the first slot is seen; as that gets sure, the others come back."""
    gentle = replace(TABLE, draft_seconds=(0.2, 1.0))
    scheduler, batch = LaggedScheduler(gentle), Batch(np.arange(8), GAMMA)
    widths = []
    for chance in [0.3] * 40 + [0.98] * 80:
        plan = scheduler.plan(batch)
        widths.append(plan.batch.width)
        c = np.where(np.arange(GAMMA) < plan.batch.width, chance, 0.0)
        scheduler.lengths(plan, np.tile(c, (8, 1)).astype(np.float32))
    assert widths[0] == GAMMA
    assert widths[39] < GAMMA
    assert widths[-1] > widths[39]


def test_a_plan_that_is_handed_on_keeps_its_width() -> None:
    batch = Batch(np.arange(4), GAMMA)
    plan = handed_on(Plan(batch.narrowed(2), 0, budget=7), Batch(np.arange(3), GAMMA, max_tokens=8))
    assert (plan.batch.width, plan.batch.room, plan.budget) == (2, 5, 5)
    promised = Batch(np.arange(2), GAMMA, floors=np.array([3, 0]))
    assert handed_on(plan, promised).batch.width == 3
    assert not plan.uniform
    assert Plan(batch.narrowed(2), 0, full=True).uniform


@given(st.integers(1, 8), st.floats(0.05, 0.99))
def test_what_a_scheduler_promises_is_the_best_rate_over_plain_decoding(requests: int, mean: float) -> None:
    batch = Batch(np.arange(requests), GAMMA)
    survival = np.repeat(falling(mean)[:, None], requests, 1)
    best = max(rate(batch.narrowed(width), survival) for width in range(1, GAMMA + 1))
    promise = SlotChoice(KnownRounds(TABLE)).promise(batch, falling(mean))
    assert promise == pytest.approx(best / (requests / batch.round_seconds(TABLE).plain))


def test_a_promise_is_the_most_there_could_be_until_something_is_known() -> None:
    batch, scheduler = Batch(np.arange(4), GAMMA), LaggedScheduler(TABLE)
    sure = scheduler.promise(batch)
    assert sure == SlotChoice(KnownRounds(TABLE)).promise(batch, np.ones(GAMMA))
    for _ in range(4):
        scheduler.lengths(scheduler.plan(batch), np.full((4, GAMMA), 0.5, dtype=np.float32))
    assert scheduler.promise(batch) == pytest.approx(SlotChoice(KnownRounds(TABLE)).promise(batch, falling(0.5)))


@pytest.mark.filterwarnings("ignore:the cost table has no draft time")
def test_nobody_can_tell_what_was_never_timed() -> None:
    assert LaggedScheduler(replace(TABLE, requests=(1, 7))).promise(Batch(np.arange(8), GAMMA)) is None
    for scheduler in (FixedLength(), StaticThreshold(0.5), PrefixScheduler(TABLE)):
        assert scheduler.promise(Batch(np.arange(1), GAMMA)) is None
        assert Parked(scheduler, TABLE).promise(Batch(np.arange(1), GAMMA)) is None
