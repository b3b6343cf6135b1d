"""Turns: fair, bounded, robust to other work on the machine."""

from random import Random

import pytest

from dspark.engine.timing_turns import ENOUGH_TURNS, LEAST_TURNS, SETTLED_TURNS, take_turns, timing
from tests.engine.timed import FakeClock

PRICES = {"a": 0.02, "b": 0.024, "c": 0.1}


def work(clock, prices=PRICES, calls=None):
    def run(name):
        if calls is not None:
            calls.append(name)
        clock.pay(prices[name])

    return {name: (lambda name=name: run(name)) for name in prices}


def test_half_of_all_runs_disturbed_hides_nothing():
    noise = Random(0)
    clock = FakeClock(lambda: 1 + noise.random() * (noise.random() < 0.5))
    found = take_turns(work(clock), 3.0, Random(1), clock)
    for name, seconds in PRICES.items():
        assert found.points[name].seconds == pytest.approx(seconds, rel=0.01)


def test_the_error_is_that_of_the_fastest():
    assert timing([1.0, 1.0, 9.0]).noise == 0
    assert timing([1.0, 9.0, 9.0, 1.25]).noise == pytest.approx(0.2)
    assert timing([0.0, 0.0]).seconds == timing([0.0, 0.0]).noise == 0


def test_the_budget_holds_and_so_does_the_least_number_of_turns():
    noise = Random(0)
    clock = FakeClock(lambda: 1 + noise.random())
    take_turns(work(clock), 2.0, Random(1), clock)
    assert clock.now <= 2.3  # the last turn may be longer than those before
    slow = FakeClock()
    assert take_turns(work(slow, {"a": 100.0}), 2.0, Random(1), slow).turns == LEAST_TURNS


def test_a_quiet_machine_is_soon_done_and_a_fast_one_does_not_go_on_for_ever():
    quiet = FakeClock()
    assert take_turns(work(quiet), 1e9, Random(1), quiet).turns == SETTLED_TURNS
    noise = Random(0)
    restless = FakeClock(lambda: 1 + 10 * noise.random())
    assert take_turns(work(restless), 1e9, Random(1), restless).turns == ENOUGH_TURNS


def test_the_order_is_another_each_turn_and_repeats_with_the_seed():
    orders = []
    for _ in range(2):
        clock, calls = FakeClock(), []
        take_turns(work(clock, dict.fromkeys("abcdef", 1.0), calls), 1e9, Random(7), clock)
        orders.append(["".join(calls[i : i + 6]) for i in range(0, len(calls), 6)])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) > 1
    assert {"".join(sorted(turn)) for turn in orders[0]} == {"abcdef"}


def test_progress_ends_at_the_whole_budget_at_most():
    clock, shares = FakeClock(), []
    take_turns(work(clock), 0.5, Random(1), clock, shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1
