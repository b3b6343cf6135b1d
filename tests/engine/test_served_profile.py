"""Profiles of many requests are the price lists of fake models, in the geometry of a serving engine."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch

from dspark.engine.profile_plan import (
    FULL_SECONDS,
    SERVED_START_CEILING,
    SERVED_START_SECONDS,
    SETUP_STEPS,
    ProfilePlan,
    full_plan,
    served_start_plan,
    start_plan,
)
from dspark.engine.profiling import profile_rounds
from dspark.engine.round_profile import RoundProfile
from dspark.engine.served_work import SHARED_POSITIONS, ServedWork, divided
from dspark.engine.timing_turns import LEAST_TURNS
from dspark.errors import ConfigError
from tests.engine.served import ServedDrafter, ServedTarget
from tests.engine.timed import FakeClock, TimedDrafter, TimedTarget

PLAN = ProfilePlan((8, 40), (1, 2, 4, 8, 16, 32), (1, 3), budget_seconds=1e9, requests=(1, 2, 8))


def profiled(plan: ProfilePlan = PLAN, owner: float = 0.5, position: float = 0.125) -> RoundProfile:
    clock = FakeClock()
    target, drafter = ServedTarget(clock, 1.0, owner, position), ServedDrafter(clock, 3, 0.25, 0.5, 0.125)
    return profile_rounds(target, drafter, plan, Random(0), clock, subject="here")


def test_rows_belong_to_one_request_up_to_a_block_and_to_several_beyond() -> None:
    assert [PLAN.spread(tokens) for tokens in PLAN.tokens] == [1, 1, 1, 3, 6, 8]
    assert [replace(PLAN, requests=(1,)).spread(tokens) for tokens in PLAN.tokens] == [1] * 6
    plain = ProfilePlan((8,), (1, 2, 4), (), 0.0, (1, 4))
    assert [plain.spread(tokens) for tokens in plain.tokens] == [1, 2, 4]  # without drafts a row is a request
    assert (PLAN.owners(), plain.owners()) == ((2, 8), None)


@pytest.mark.parametrize("tokens", range(1, 33))
def test_no_request_has_more_rows_than_a_block(tokens: int) -> None:
    rows = divided(tokens, PLAN.spread(tokens))
    assert sum(rows) == tokens
    assert 1 <= min(rows) <= max(rows) <= min(min(rows) + 1, PLAN.gamma + 1)


def test_every_point_is_where_it_belongs() -> None:
    table = profiled().table
    spread = (1, 1, 1, 3, 6, 8)
    assert table.spread == spread
    for context, row in zip(table.contexts, table.verify_seconds, strict=True):
        prices = [n + s * (0.5 + 0.125 * context) for n, s in zip(table.tokens, spread, strict=True)]
        assert row == pytest.approx(prices)
    assert table.requests == (1, 2, 8)
    assert table.draft_seconds == pytest.approx([0.25 + 3 * (0.5 + 0.125 * n) for n in (1, 2, 8)])
    assert table.first_draft_seconds == pytest.approx([0.25 + 0.5 + 0.125 * n for n in (1, 2, 8)])
    assert table.request_seconds == pytest.approx((1.5, 5.5))
    assert (table.noise, table.subject) == (0.0, "here")


def test_a_round_of_any_requests_has_its_own_price() -> None:
    """Not only of as many as the rows were spread over."""
    table = profiled().table
    for requests in (4, 6, 8):
        plain = table.round_seconds(requests, requests, 0, 8).plain - table.overhead_seconds
        assert plain == pytest.approx(requests + requests * 1.5)
    assert table.round_seconds(8, 8, 24, 8).measured
    assert not table.round_seconds(9, 9, 24, 8).measured


def test_blocks_of_one_request_are_known_too() -> None:
    found = profiled()
    assert (found.drafts, found.block_seconds) == ((1, 3), (0.75, 1.75))
    assert found.round_seconds(3, 8)[3] == pytest.approx(4 + 1.5 + 1.75)


def test_requests_are_as_many_as_the_plan_says_each_turn() -> None:
    clock = FakeClock()
    target, drafter = ServedTarget(clock, 1.0), ServedDrafter(clock, 3, 0.25, 0.5, 0.125)
    turns = profile_rounds(target, drafter, PLAN, Random(0), clock).turns
    calls = Counter(target.calls)
    for context in PLAN.contexts:
        for tokens in (1, 4, 16):
            assert calls[context, tuple(divided(tokens, PLAN.spread(tokens)))] >= turns
        assert calls[context, (1,) * 8] == calls[context, (4, 4)] == turns
    assert set(Counter(drafter.shown)) == {2, 4, 16}


def test_a_price_of_owners_that_noise_makes_negative_is_none() -> None:
    assert profiled(owner=-0.5, position=0.0).table.request_seconds == (0.0, 0.0)


def test_a_drafter_for_one_request_is_timed_as_one() -> None:
    clock = FakeClock()
    found = profile_rounds(ServedTarget(clock, 1.0), TimedDrafter(clock, 3, 0.25, 0.5), PLAN, Random(0), clock)
    assert (found.table.requests, found.table.draft_seconds) == ((1,), (1.75,))
    assert PLAN.covered_by(found)


def test_a_target_for_one_request_is_refused() -> None:
    clock = FakeClock()
    with pytest.raises(ConfigError, match="no batch of 8"):
        profile_rounds(TimedTarget(clock, [1.0]), None, PLAN, Random(0), clock)


def test_a_target_alone_can_be_served() -> None:
    clock = FakeClock()
    plan = full_plan(ServedTarget(clock, 1.0).info, 0, (16,), requests=8)
    assert plan.tokens == (1, 2, 3, 4, 5, 6, 7, 8)
    found = profile_rounds(ServedTarget(clock, 1.0, owner=0.5), None, plan, Random(0), clock)
    assert found.table.verify_seconds == ((1.5, 3.0, 4.5, 6.0, 7.5, 9.0, 10.5, 12.0),)
    assert (found.table.spread, found.table.draft_seconds) == ((), (0.0,))


def test_files_give_the_profile_back() -> None:
    found = profiled()
    assert RoundProfile.from_json(found.to_json()) == found
    assert found.as_json()["requests_by_tokens"]["16"] == 6
    assert found.as_json()["request_seconds_by_context"] == {"8": 1.5, "40": 5.5}
    assert found.as_json()["draft_seconds"].keys() == {"1", "2", "8"}


def test_what_a_plan_for_many_asks_for_may_be_there_already() -> None:
    found = profiled()
    assert PLAN.covered_by(found)
    assert replace(PLAN, requests=(1,)).covered_by(found)
    assert not replace(PLAN, requests=(1, 16)).covered_by(found)
    alone = replace(PLAN, requests=(1,))
    clock = FakeClock()
    single = profile_rounds(TimedTarget(clock, [1.0]), TimedDrafter(clock, 3), alone, Random(0), clock)
    assert not PLAN.covered_by(single)  # the same sizes, but of one request


def test_long_contexts_are_shared_beyond_what_caches_hold() -> None:
    """Pages of the context may be read by several, those behind it are each request's own (`served.append` looks)."""
    clock = FakeClock()
    target = ServedTarget(clock, 1.0, max_positions=8192)
    plan = ProfilePlan((4000,), (1, 64), (1, 7), 0.0, (1, 64))
    for work in ServedWork(target, None, plan).verification().values():
        work()
    assert SHARED_POSITIONS // 16 <= target.pool.pages <= SHARED_POSITIONS // 16 + 64 * 2


def test_pages_are_written_before_they_are_read() -> None:
    target = ServedTarget(FakeClock(), 1.0)
    ServedWork(target, None, PLAN)
    assert torch.count_nonzero(target.pool.data) == target.pool.data.numel()


def test_full_plans_reach_what_all_requests_verify() -> None:
    info = TimedTarget(FakeClock(), [1.0], max_positions=8192).info
    plan = full_plan(info, 7, requests=64)
    assert (plan.contexts, plan.budget_seconds) == ((16, 256, 1024), FULL_SECONDS)
    assert (plan.tokens[:9], plan.tokens[-2:]) == ((1, 2, 3, 4, 5, 6, 7, 8, 12), (384, 512))
    assert plan.requests == (1, 2, 4, 8, 16, 32, 64)
    assert full_plan(info, 5, requests=48).tokens[-1] == 288
    assert full_plan(info, 5, requests=48).requests == (1, 2, 4, 8, 16, 32, 48)
    short = full_plan(TimedTarget(FakeClock(), [1.0], max_positions=128).info, 7, requests=64)
    assert (short.contexts, short.tokens[-1]) == ((16,), 512)  # rows of many requests need no long context
    with pytest.raises(ConfigError, match="requests are 0"):
        full_plan(info, 7, requests=0)


@pytest.mark.parametrize("step", [0.001, 0.01, 0.02, 0.03, 0.5])
def test_a_start_is_brief_or_left_out(step: float) -> None:
    info = TimedTarget(FakeClock(), [1.0], max_positions=8192).info
    plan = served_start_plan(info, 7, step, 64)
    if plan is None:
        assert step > 0.02
        return
    assert step * (SETUP_STEPS + LEAST_TURNS * plan.steps) <= SERVED_START_CEILING
    assert {1, 64} <= set(plan.requests)
    assert {1, 8, 16, 32, 128} <= set(plan.tokens)
    alone = start_plan(info, 7, 0.0)
    assert alone is not None
    whole = {*alone.tokens} <= {*plan.tokens}
    assert whole == (step < 0.004)
    assert not whole or step * (SETUP_STEPS + LEAST_TURNS * plan.steps) <= SERVED_START_SECONDS
    assert step * SETUP_STEPS + plan.budget_seconds <= max(SERVED_START_SECONDS, step * SETUP_STEPS)


def test_a_start_fits_small_targets_and_batches() -> None:
    info = TimedTarget(FakeClock(), [1.0], max_positions=64).info
    plan = served_start_plan(info, 3, 0.0, 2)
    assert plan is not None
    assert (plan.contexts, plan.tokens, plan.requests) == ((60,), (1, 2, 3, 4, 8), (1, 2))
    assert served_start_plan(TimedTarget(FakeClock(), [1.0], max_positions=4).info, 3, 0.0, 2) is None
