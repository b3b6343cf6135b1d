"""Floors hold whether or not drafting pays; what is not a floor is trimmed as ever, and probes keep their pace."""

from collections.abc import Callable

import numpy as np
import pytest

from dspark.scheduling import (
    Batch,
    CostTable,
    FixedLength,
    LaggedScheduler,
    Outcome,
    Parked,
    ProbeSchedule,
    Scheduler,
    SchedulerConfig,
    build_scheduler,
)

GAMMA = 4
KEYS = np.arange(2)
STEEP = CostTable((1, 10), (0,), ((1.0, 10.0),), (1, 2), (0.5, 0.5))
"""A draft costs as much as a request decoding plainly: none ever pays."""

PROMISED = np.array([4, 0])
UNLIKELY = np.full((2, GAMMA), 0.3)


def play(scheduler: Scheduler, floors: list[np.ndarray | None], accepted: int = 0) -> list[list[int]]:
    """Lengths of consecutive rounds with these floors."""
    seen = []
    for row in floors:
        plan = scheduler.plan(Batch(KEYS, GAMMA, floors=row))
        lengths = scheduler.lengths(plan, UNLIKELY)
        scheduler.observe(Outcome(plan, lengths, np.minimum(lengths, accepted)))
        seen.append(lengths.tolist())
    return seen


@pytest.mark.parametrize("name", ["lagged", "prefix", "threshold", "fixed"])
def test_promises_hold_where_plain_decoding_wins(name: str) -> None:
    played = play(build_scheduler(SchedulerConfig(name), STEEP), [PROMISED] * 60)
    assert all(lengths[0] == 4 for lengths in played)
    assert sum(lengths[1] for lengths in played[2:]) <= (1 + 2 * 4) * GAMMA  # nothing but probes of four rounds


def test_the_lagged_scheduler_alone_keeps_them_too() -> None:
    assert play(LaggedScheduler(STEEP), [PROMISED] * 40)[2:] == [[4, 0]] * 38


@pytest.mark.parametrize("name", ["lagged", "prefix"])
def test_rounds_chosen_for_labels_bring_them_while_parked(name: str) -> None:
    chosen = [PROMISED if number % 5 == 4 else None for number in range(60)]
    played = play(build_scheduler(SchedulerConfig(name), STEEP), chosen)
    assert [lengths[0] for lengths in played[4::5]] == [4] * 12
    drafted = [number for number, lengths in enumerate(played) if any(lengths) and number % 5 != 4]
    assert (
        len([number for number in drafted if number >= 3]) <= 2 * 4
    )  # probes of four rounds after 16 and 32 rounds of rest


def test_labels_do_not_bring_probes_sooner() -> None:
    """Full width beats the floors alone here, but not plain decoding: that is no reason to draft in other rounds."""
    flat = CostTable((1, 10), (0,), ((1.0, 1.0),), (1, 2), (3.5, 3.5))
    scheduler = Parked(FixedLength(), flat, probes=ProbeSchedule(first=8, longest=64, blocks=2))
    chosen = [PROMISED if number % 3 == 2 else None for number in range(100)]
    played = play(scheduler, chosen, accepted=3)
    assert played[2::3] == [[4, 4]] * 33
    assert sum(1 for number, lengths in enumerate(played) if number % 3 != 2 and any(lengths)) <= 5


def test_what_pays_beside_the_floors_is_drafted() -> None:
    """Once drafted for, a second request's drafts cost nothing: they are trimmed by what they cost, not by habit."""
    plateau = CostTable((1, 2, 6, 10), (0,), ((1.0, 1.0, 4.0, 4.0),), (1, 2), (0.5, 0.5))
    assert play(LaggedScheduler(plateau), [PROMISED] * 6)[2:] == [[4, 4]] * 4
    assert play(LaggedScheduler(plateau), [None] * 6)[2:] == [[0, 0]] * 4


def test_a_better_drafter_is_noticed_by_a_probe_though_every_round_has_floors() -> None:
    gentle = CostTable((1, 10), (0,), ((1.0, 1.4),), (1, 2), (0.2, 0.2))
    scheduler = Parked(FixedLength(), gentle, rate=0.5, probes=ProbeSchedule(first=4, longest=8))
    one = np.array([1, 0])
    assert play(scheduler, [one] * 4, accepted=0)[1:] == [[1, 0]] * 3
    assert play(scheduler, [one] * 20, accepted=4)[-1] == [4, 4]


@pytest.mark.parametrize("build", [lambda: FixedLength(0), lambda: Parked(FixedLength(0), STEEP)])
def test_drafting_that_is_switched_off_stays_off(build: Callable[[], Scheduler]) -> None:
    assert play(build(), [PROMISED] * 3) == [[0, 0]] * 3
