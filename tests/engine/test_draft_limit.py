"""The limit follows measured cost: flat verification drafts all, steep verification drafts none."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.drafters.fake import FakeDrafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.draft_limit import (
    NEAR,
    NO_PROFILE,
    NOISY_PROFILE,
    DraftLimit,
    best_limit,
    draft_limit,
    expected_tokens,
    round_seconds,
)
from dspark.engine.profile_plan import start_plan
from dspark.engine.profiling import profile_rounds
from dspark.engine.round_profile import RoundProfile
from dspark.engine.row_seconds import row_seconds
from dspark.engine.start_profile import measure_draft_limit
from dspark.types import Acceptance, SamplingParams
from tests.engine.timed import FakeClock, TimedDrafter, TimedTarget, V

GAMMA = 4
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.7)


def profiled(price: Sequence[float], step: float = 0.0) -> RoundProfile:
    clock = FakeClock()
    target = TimedTarget(clock, price)
    plan = start_plan(target.info, GAMMA, 0.0)
    assert plan is not None
    return profile_rounds(target, TimedDrafter(clock, GAMMA, step=step), plan, Random(0), clock)


def with_noise(profile: RoundProfile, noise: float) -> RoundProfile:
    return replace(profile, table=replace(profile.table, noise=noise))


INFO = TimedDrafter(FakeClock(), GAMMA, acceptance=Acceptance(sampled=(0.8,))).info


def test_by_hand() -> None:
    """E = 1, 1.8, 2.44: 1/1, 1.8/1.5, 2.44/2.5 -> one draft."""
    assert best_limit([1.0, 1.5, 2.5], [1.0, 1.8, 2.44]) == 1


def test_what_no_clock_tells_apart_goes_to_fewer_drafts() -> None:
    assert best_limit([1.0, 2.0], [1.0, 2.0]) == 0
    assert best_limit([1.0, 1.0], [1.0, 1.0 + NEAR / 2]) == 0
    assert best_limit([1.0, 1.0], [1.0, 1.0 + 2 * NEAR]) == 1
    assert best_limit([1.0, 1.0], [1.0, 1.0 + 2 * NEAR], noise=3 * NEAR) == 0


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    survival=st.lists(st.floats(0, 1), min_size=7, max_size=7),
    noise=st.floats(0, 1),
)
def test_never_expected_to_be_slower_than_plain(seconds: list[float], survival: list[float], noise: float) -> None:
    expected = [1.0 + sum(sorted(survival, reverse=True)[:k]) for k in range(len(seconds))]
    k = best_limit(seconds, expected, noise)
    assert expected[k] / seconds[k] >= 1 / seconds[0] * (1 - 1e-9)


def test_the_record_of_the_requests_temperature_counts() -> None:
    info = FakeDrafter(lambda prefix: torch.zeros(V), V, 3).info
    assert expected_tokens(info, GREEDY) == pytest.approx([1, 1.6, 1.96, 2.176])
    old = replace(info, acceptance=Acceptance(sampled=(0.5, 0.4)))
    assert expected_tokens(old, GREEDY) == expected_tokens(old, SAMPLED) == pytest.approx([1, 1.5, 1.7, 1.78])
    both = replace(info, acceptance=Acceptance(sampled=(0.5, 0.4), greedy=(0.8, 0.5)))
    assert expected_tokens(both, GREEDY) == pytest.approx([1, 1.8, 2.2, 2.4])
    assert expected_tokens(both, SAMPLED) == expected_tokens(old, SAMPLED)


@pytest.mark.parametrize(
    ("price", "limit"), [([1.0] * 5, GAMMA), ([1.0, 2.0, 3.0, 4.0, 5.0], 0), ([1.0, 1.0, 1.0, 5.0, 5.0], 2)]
)
def test_of_a_target_with_known_prices(price: list[float], limit: int) -> None:
    assert draft_limit(profiled(price), INFO, GREEDY).drafts == limit
    assert draft_limit(profiled(price), INFO, GREEDY).warning is None


def test_drafting_and_the_rest_of_a_round_count() -> None:
    """E = 1, 1.8, 2.44, 2.95, 3.36 over 1 + k step, then over 10 + k."""
    flat = [1.0] * 5
    assert draft_limit(profiled(flat, step=0.1), INFO, GREEDY).drafts == 4
    assert draft_limit(profiled(flat, step=0.4), INFO, GREEDY).drafts == 2
    assert draft_limit(profiled(flat, step=1.0), INFO, GREEDY).drafts == 0
    dear = profiled(flat, step=1.0)
    shared = replace(dear, table=replace(dear.table, overhead_seconds=9.0))
    assert draft_limit(shared, INFO, GREEDY).drafts == 4


def test_a_greedy_request_drafts_more_where_greedy_drafts_are_accepted_more() -> None:
    profile = profiled([1.0, 1.6, 3.0, 4.0, 5.0])
    info = replace(INFO, acceptance=Acceptance(sampled=(0.5, 0.1), greedy=(0.9, 0.1)))
    assert [draft_limit(profile, info, params).drafts for params in (GREEDY, SAMPLED)] == [1, 0]


def test_without_a_usable_profile_nothing_is_trimmed_and_why_is_said() -> None:
    """Contract 3. Prices that would ask for two drafts are not believed; not drafting remains a choice."""
    assert draft_limit(None, INFO, GREEDY) == DraftLimit(GAMMA, NO_PROFILE)
    slight = profiled([1.0, 1.0, 1.0, 1.5, 1.5], step=0.1)
    assert draft_limit(slight, INFO, GREEDY).drafts == 2
    noisy = draft_limit(with_noise(slight, 0.6), INFO, GREEDY)
    assert (noisy.drafts, noisy.warning) == (GAMMA, NOISY_PROFILE)
    dear = profiled([1.0, 1.0, 1.0, 1.5, 1.5], step=2.0)
    assert draft_limit(with_noise(dear, 0.6), INFO, GREEDY).drafts == 0


def test_noise_speaks_for_plain_decoding_and_for_nothing_else() -> None:
    profile = profiled([1.0, 1.2, 1.5, 2.0, 3.0])
    assert draft_limit(profile, INFO, GREEDY).drafts == 2
    assert draft_limit(with_noise(profile, 0.1), INFO, GREEDY).drafts == 2
    assert draft_limit(with_noise(profile, 0.7), INFO, GREEDY).drafts == 0
    assert draft_limit(with_noise(profile, 0.7), INFO, GREEDY) == DraftLimit(0, NOISY_PROFILE)


def test_where_drafting_does_not_pay_anyway_noise_is_no_reason() -> None:
    dear = profiled([1.0, 2.0, 3.0, 4.0, 5.0])
    assert draft_limit(with_noise(dear, 0.1), INFO, GREEDY) == DraftLimit(0)


def test_laws_of_a_sampled_round_cost_time() -> None:
    """E = 1, 1.8, 2.44, 2.95, 3.36 over 1 + (2k + 1) row: a draft has a law of its own and one that judges it."""
    flat = profiled([1.0] * 5)
    assert round_seconds(flat, INFO, 0.5) == pytest.approx([1.5, 2.5, 3.5, 4.5, 5.5])
    limits = [draft_limit(profiled([1.0, 1.0, 1.0, 1.1, 1.1]), INFO, SAMPLED, row).drafts for row in (0.0, 0.5, 5.0)]
    assert limits == [4, 1, 0]


def test_a_row_is_timed_for_sampled_requests_only() -> None:
    ticks = iter(range(100))
    assert row_seconds(V, SAMPLED, lambda: float(next(ticks))) == 1.0
    assert row_seconds(V, GREEDY, lambda: float(next(ticks))) == 0.0


def test_a_loop_of_ones_own_asks_in_one_call() -> None:
    clock = FakeClock()
    target = TimedTarget(clock, [1 / 64, 1 / 64, 1 / 64, 1 / 8, 1 / 8])
    drafter = TimedDrafter(clock, GAMMA, acceptance=INFO.acceptance)
    assert measure_draft_limit(target, drafter, GREEDY, clock) == DraftLimit(2)  # its free drafts beat copies
    slow = TimedTarget(clock, [9.0])
    assert measure_draft_limit(slow, drafter, GREEDY, clock) == DraftLimit(GAMMA, NO_PROFILE, PromptLookup())
