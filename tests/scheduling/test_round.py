"""Batches and confidences that cannot be are refused by name; caps, floors, priorities and limits hold."""

from collections.abc import Callable

import numpy as np
import pytest

from dspark.errors import ConfigError
from dspark.scheduling import (
    Batch,
    CostTable,
    FixedLength,
    LaggedScheduler,
    Plan,
    PrefixScheduler,
    Scheduler,
    StaticThreshold,
    conditionals,
    rate_floors,
)
from dspark.scheduling.survival import survivals

TABLE = CostTable((1, 3, 12), (0,), ((1.0, 1.0, 3.0),), (1,), (0.0,))
KEYS = np.arange(3)
SURE = np.ones((3, 3))

READING: dict[str, Callable[[], Scheduler]] = {
    "threshold": lambda: StaticThreshold(0.5),
    "prefix": lambda: PrefixScheduler(TABLE),
    "lagged": lambda: LaggedScheduler(TABLE),
}
every_scheduler = pytest.mark.parametrize("build", [FixedLength, *READING.values()], ids=["fixed", *READING])


def ints(*values: int) -> np.ndarray:
    return np.array(values)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"keys": ints()}, "keys has shape"),
        ({"keys": [1, 2, 3]}, "keys are of type list"),
        ({"keys": np.array([1.0, 2.0, np.nan])}, "keys are of type float64"),
        ({"keys": ints(4, 7, 4)}, "keys hold 4 twice"),
        ({"gamma": 0}, "gamma is 0"),
        ({"context": float("nan")}, "context is nan"),
        ({"context": float("inf")}, "context is inf"),
        ({"context": -1.0}, "context is -1"),
        ({"caps": np.array([1.0, np.nan, 2.0])}, "caps are of type float64"),
        ({"floors": np.array([1.0, 0.0, 0.0])}, "floors are of type float64"),
        ({"max_tokens": 2}, "max_tokens is 2 for 3 requests"),
        ({"caps": ints(1, 2)}, "caps has shape"),
        ({"caps": ints(1, 2, 4)}, "caps are 1 to 4"),
        ({"floors": ints(0, -1, 0)}, "floors must lie"),
        ({"floors": ints(0, 2, 0), "caps": ints(3, 1, 3)}, "floors must lie"),
        ({"floors": ints(1, 1, 1), "max_tokens": 5}, "floors ask for 3 drafts, max_tokens leaves 2"),
        ({"weights": np.array([1.0, 0.0, 1.0])}, "weights are 0.0"),
        ({"weights": np.array([1.0, np.nan, 1.0])}, "weights are nan"),
    ],
)
def test_impossible_batches_are_refused_by_name(terms: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Batch(**{"keys": KEYS, "gamma": 3, **terms})  # type: ignore[arg-type]


@pytest.mark.parametrize("build", READING.values(), ids=READING)
@pytest.mark.parametrize(
    ("confidences", "message"),
    [
        (None, "confidences are missing"),
        (np.ones((3, 2)), r"confidences have shape \(3, 2\); expected \(3, 3\)"),
        (np.where(np.arange(9).reshape(3, 3) == 5, np.nan, 0.5), r"confidences\[1, 2\] is nan"),
        (np.where(np.arange(9).reshape(3, 3) == 3, 1.5, 0.5), r"confidences\[1, 0\] is 1.5"),
        (np.where(np.arange(9).reshape(3, 3) == 8, -2.0, 0.5), r"confidences\[2, 2\] is -2.0"),
    ],
)
def test_impossible_confidences_are_refused_by_name(build, confidences, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build().lengths(Plan(Batch(KEYS, 3), 0, budget=4), confidences)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1e-45, -1.0, np.nextafter(np.float32(1), np.float32(2))])
def test_impossible_confidences_in_single_precision_are_refused(wrong: float) -> None:
    c = np.full((3, 3), 0.5, dtype=np.float32)
    c[1, 2] = wrong
    with pytest.raises(ConfigError, match=r"confidences\[1, 2\] is"):
        survivals(c, Batch(KEYS, 3))


def test_the_ends_of_probability_are_confidences() -> None:
    c = np.array([[1.0, 0.0, -0.0]] * 3, dtype=np.float32)
    assert survivals(c, Batch(KEYS, 3))[:, 0].tolist() == [1, 0, 0]
    assert survivals(c[:, ::-1], Batch(KEYS, 3))[:, 0].tolist() == [0, 0, 0]


@every_scheduler
def test_caps_floors_and_limits_hold(build) -> None:
    scheduler = build()
    batch = Batch(KEYS, 3, caps=ints(0, 1, 3), floors=ints(0, 1, 2), max_tokens=6)
    for c in (SURE, np.zeros((3, 3))):
        assert scheduler.lengths(scheduler.plan(batch), c).tolist() == [0, 1, 2]


def test_a_full_plan_cuts_the_last_positions_first() -> None:
    scheduler = FixedLength()
    assert scheduler.lengths(scheduler.plan(Batch(KEYS, 3, max_tokens=7)), SURE).tolist() == [2, 1, 1]


@every_scheduler
def test_nothing_is_drafted_without_room(build) -> None:
    scheduler = build()
    for batch in (Batch(KEYS, 3, max_tokens=3), Batch(KEYS, 3, caps=ints(0, 0, 0))):
        plan = scheduler.plan(batch)
        assert (plan.drafts, plan.uniform) == (False, False)
        assert scheduler.lengths(plan, SURE).tolist() == [0, 0, 0]


def test_priority_buys_drafts() -> None:
    batch = Batch(KEYS, 3, weights=np.array([1.0, 1.0, 8.0]))
    c = np.full((3, 3), 0.5)
    assert LaggedScheduler(TABLE).lengths(Plan(batch, 0, budget=4), c).tolist() == [1, 0, 3]


@pytest.mark.parametrize("name", READING)
def test_recorded_requests_alone_are_verified_in_full(name: str) -> None:
    scheduler = READING[name]()
    hopeless = np.zeros((3, 3))
    for _ in range(3):  # the lagged scheduler has to learn that they are
        plan = scheduler.plan(Batch(KEYS, 3, floors=ints(0, 3, 0)))
        lengths = scheduler.lengths(plan, hopeless)
    assert lengths.tolist() == [0, 3, 0]
    assert scheduler.lengths(Plan(plan.batch, 9, budget=3), hopeless).tolist() == [0, 3, 0]


def test_fixed_length_cuts_the_last_positions_first() -> None:
    scheduler = FixedLength(2)
    assert scheduler.lengths(scheduler.plan(Batch(KEYS, 3))).tolist() == [2, 2, 2]
    assert scheduler.lengths(scheduler.plan(Batch(KEYS, 3, max_tokens=7))).tolist() == [2, 1, 1]
    assert not FixedLength(0).plan(Batch(KEYS, 3)).drafts


def test_threshold_stops_at_the_first_doubt() -> None:
    scheduler = StaticThreshold(0.5)
    c = np.array([[0.5, 0.4, 0.9], [0.9, 0.9, 0.5], [0.4, 1.0, 1.0]])
    assert scheduler.lengths(scheduler.plan(Batch(KEYS, 3)), c).tolist() == [1, 3, 0]


def test_promised_rates_become_floors() -> None:
    survival = np.array([[0.9, 0.5, 1.0, 0.2], [0.8, 0.1, 1.0, 0.1]])
    floors = rate_floors(np.array([18.0, 0.0, 25.0, 30.0]), survival, round_seconds=0.1)
    assert floors.tolist() == [1, 0, 2, 2]


def test_a_promise_met_exactly_needs_no_more() -> None:
    """Eight rounds a second: one token each without drafts, 1.5 with one draft, all exact in binary."""
    survival = np.full((3, 5), 0.5) ** np.arange(1, 4)[:, None]
    floors = rate_floors(np.array([8.0, np.nextafter(8, 9), 12.0, np.nextafter(12, 13), 14.0]), survival, 0.125)
    assert floors.tolist() == [0, 1, 1, 2, 2]


def test_floors_stay_within_caps_so_that_a_batch_takes_them() -> None:
    caps = ints(0, 2, 3)
    floors = rate_floors(np.full(3, 100.0), np.full((3, 3), 0.5), 0.1, caps)
    assert floors.tolist() == [0, 2, 3]
    assert Batch(KEYS, 3, caps=caps, floors=floors).floor_tokens == 5


RATES, SURVIVAL = np.ones(2), np.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"rates": np.array([1.0])}, "rates"),
        ({"rates": np.array([1.0, -1.0])}, "rates must be 0"),
        ({"rates": np.array([1.0, np.nan])}, "rates must be 0"),
        ({"survival": np.where(np.arange(6).reshape(3, 2) == 3, np.nan, 0.5)}, "survival must be probabilities"),
        ({"survival": np.full((3, 2), 1.5)}, "survival must be probabilities"),
        ({"round_seconds": float("nan")}, "round_seconds is nan"),
        ({"round_seconds": 0.0}, "round_seconds is 0"),
        ({"caps": ints(1, 2, 3)}, r"caps \(3,\) disagree"),
    ],
)
def test_promises_that_cannot_be_are_refused_by_name(terms: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rate_floors(**{"rates": RATES, "survival": SURVIVAL, "round_seconds": 0.1, **terms})  # type: ignore[arg-type]


def test_calibrated_survivals_become_confidences() -> None:
    a = np.array([[0.8, 0.4, 0.5], [0.5, 0.0, 0.0]])
    c = conditionals(a)
    assert c == pytest.approx(np.array([[0.8, 0.5, 1.0], [0.5, 0.0, 0.0]]))
    assert pytest.approx(np.minimum.accumulate(a, axis=1)) == survivals(c, Batch(KEYS[:2], 3)).T
