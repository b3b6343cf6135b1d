"""Profiles of fake models are their price lists."""

from random import Random

import pytest

from dspark.engine.profile_plan import FULL_SECONDS, MANY_TOKENS, ProfilePlan, full_plan, start_plan
from dspark.engine.profiling import overhead_seconds, profile_rounds, step_seconds
from dspark.engine.round_profile import RoundProfile
from dspark.errors import ConfigError, FormatError
from tests.engine.timed import FakeClock, TimedDrafter, TimedTarget

PLAN = ProfilePlan(contexts=(8, 32), tokens=(1, 2, 4), drafts=(1, 3), budget_seconds=1e9)


@pytest.fixture
def profile() -> RoundProfile:
    clock = FakeClock()
    target = TimedTarget(clock, (1.0, 1.5, 3.0, 2.0), per_position=0.125)
    return profile_rounds(target, TimedDrafter(clock, 3, 0.25, 0.5), PLAN, Random(0), clock, subject="here")


def test_every_point_is_where_it_belongs(profile: RoundProfile) -> None:
    table = profile.table
    assert table.verify_seconds == ((2.0, 2.5, 3.0), (5.0, 5.5, 6.0))
    assert (table.requests, table.draft_seconds) == ((1,), (1.75,))
    assert (profile.drafts, profile.block_seconds) == ((1, 3), (0.75, 1.75))
    assert (table.noise, table.subject) == (0.0, "here")


def test_a_round_is_draft_and_verification_and_the_rest(profile: RoundProfile) -> None:
    assert profile.round_seconds(3, 8) == pytest.approx([2.0, 2.5 + 0.75, 2.75 + 1.25, 3.0 + 1.75])
    assert profile.round_seconds(0, 32) == pytest.approx([5.0])
    with pytest.raises(ConfigError, match="4 drafts were not profiled"):
        profile.block(4)


def test_noise_is_known() -> None:
    noise = Random(3)
    clock = FakeClock(lambda: 1 + 0.2 * noise.random())
    plan = ProfilePlan((8,), tuple(range(1, 9)), (), budget_seconds=40.0)
    table = profile_rounds(TimedTarget(clock, [1.0]), None, plan, Random(0), clock).table
    assert 0.02 < table.noise < 0.4
    assert not table.round_seconds(1, 1, 7, 8).resolved


def test_without_a_drafter_only_verification_is_measured() -> None:
    clock = FakeClock()
    plan = full_plan(TimedTarget(clock, [1.0]).info, 0, (16,))
    profile = profile_rounds(TimedTarget(clock, [1.0]), None, plan, Random(0), clock)
    assert profile.table.draft_seconds == (0.0,)
    assert profile.drafts == ()
    assert profile.as_json()["draft_seconds"] == {"1": 0.0}


def test_the_rest_of_a_round_is_what_passes_outside_the_target() -> None:
    clock = FakeClock()
    target = TimedTarget(clock, [1.0])
    assert overhead_seconds(target, clock) == 0

    ticks = iter(range(10**6))
    assert overhead_seconds(target, lambda: clock() + 0.001 * next(ticks)) == pytest.approx(0.006, abs=0.004)
    assert overhead_seconds(TimedTarget(clock, [1.0], max_positions=2), clock) == 0  # no room for a round


@pytest.mark.parametrize("factors", [(1.0, 40.0, 1.0), (1.0, 1.0, 40.0), (40.0, 1.0, 1.0)])
def test_neither_the_first_step_nor_a_pause_makes_a_step_look_slow(factors: tuple[float, ...]) -> None:
    clock = FakeClock(iter(factors).__next__)
    assert step_seconds(TimedTarget(clock, [0.5]), clock) == 0.5


def test_json_has_the_agreed_shape_and_files_give_the_profile_back(profile: RoundProfile) -> None:
    tree = profile.as_json()
    assert tree["verify_seconds"] == {"1": 2.0, "2": 2.5, "4": 3.0}
    assert tree["verify_seconds_by_context"]["32"] == {"1": 5.0, "2": 5.5, "4": 6.0}
    assert tree["draft_seconds"] == {"1": 1.75}
    assert tree["draft_requests_measured"] == 1
    assert tree["block_seconds"] == {"1": 0.75, "3": 1.75}
    assert RoundProfile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "other"},
        {"table": {}},
        {"drafts": [3, 1]},
        {"block_seconds": [1.0]},
        {"block_noise": [float("nan"), 0.0]},
        {"verify_noise": [[0.0]]},
        {"turns": None},
    ],
)
def test_a_damaged_file_is_no_profile(profile: RoundProfile, damage: dict[str, object]) -> None:
    with pytest.raises(FormatError, match="profile again"):
        RoundProfile.from_json(profile.to_json() | damage)


def test_at_start_every_size_of_a_block_is_measured_unless_steps_are_slow() -> None:
    info = TimedTarget(FakeClock(), [1.0]).info
    assert start_plan(info, 7, 0.0) == ProfilePlan((16,), tuple(range(1, 9)), tuple(range(1, 8)), 2.0)
    assert start_plan(info, 7, 1 / 16) == ProfilePlan((16,), (1, 2, 3, 5, 8), (1, 7), 2 - 12 / 16)
    assert start_plan(info, 1, 1 / 8) == ProfilePlan((16,), (1, 2), (1,), 2 - 12 / 8)
    assert start_plan(info, 7, 0.125) is None


def test_a_target_without_room_for_a_block_is_not_profiled_at_start() -> None:
    small, full = (TimedTarget(FakeClock(), [1.0], max_positions=positions).info for positions in (16, 8))
    plan = start_plan(small, 7, 0.02)
    assert plan is not None
    assert plan.contexts == (8,)
    assert start_plan(full, 7, 0.02) is None


def test_a_full_plan_fits_the_target() -> None:
    def info(positions: int):  # type: ignore[no-untyped-def]
        return TimedTarget(FakeClock(), [1.0], max_positions=positions).info

    assert full_plan(info(8192), 7) == ProfilePlan((16, 256, 1024), MANY_TOKENS, tuple(range(1, 8)), FULL_SECONDS)
    assert full_plan(info(8192), 9).tokens[:11] == (*range(1, 11), 12)
    assert full_plan(info(128), 3).contexts == (16,)
    assert full_plan(info(128), 3).tokens[-1] == 96
    assert full_plan(info(128), 3, (100, 10, 100)).contexts == (10, 100)
    assert full_plan(info(16), 3).contexts == (12,)
    assert full_plan(info(8192), 7, (1024,)).contexts == (16, 1024)  # decoding reads the short one
    for contexts in ((125,), (0,), (64, -1)):
        with pytest.raises(ConfigError, match="choose 1 to 124"):
            full_plan(info(128), 3, contexts)


def test_what_a_plan_asks_for_may_be_there_already(profile: RoundProfile) -> None:
    assert PLAN.covered_by(profile)
    assert ProfilePlan((8,), (1, 4), (3,), 0.0).covered_by(profile)
    assert not ProfilePlan((16,), (1,), (), 0.0).covered_by(profile)
    assert not ProfilePlan((8,), (8,), (), 0.0).covered_by(profile)
    assert not ProfilePlan((8,), (1,), (2,), 0.0).covered_by(profile)
