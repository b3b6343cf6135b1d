"""The limit follows measured cost: flat verification drafts all, steep verification drafts none."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspark.drafters.fake import FakeDrafter
from dspark.engine.draft_limit import NEAR, best_limit, expected_tokens, measure_draft_limit, race
from dspark.targets.fake import FakeTarget
from dspark.types import Acceptance, Cache, SamplingParams, TargetOutput

V, GAMMA = 5, 4
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.7)


def test_by_hand() -> None:
    """E = 1, 1.8, 2.44: 1/1, 1.8/1.5, 2.44/2.5 -> one draft."""
    assert best_limit([1.0, 1.5, 2.5], [1.0, 1.8, 2.44]) == 1


def test_what_no_clock_tells_apart_goes_to_fewer_drafts() -> None:
    assert best_limit([1.0, 2.0], [1.0, 2.0]) == 0
    assert best_limit([1.0, 1.0], [1.0, 1.0 + NEAR / 2]) == 0
    assert best_limit([1.0, 1.0], [1.0, 1.0 + 2 * NEAR]) == 1


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    survival=st.lists(st.floats(0, 1), min_size=7, max_size=7),
)
def test_never_expected_to_be_slower_than_plain(seconds: list[float], survival: list[float]) -> None:
    expected = [1.0 + sum(sorted(survival, reverse=True)[:k]) for k in range(len(seconds))]
    k = best_limit(seconds, expected)
    assert expected[k] / seconds[k] >= 1 / seconds[0] * (1 - 1e-9)


def test_the_record_of_the_requests_temperature_counts() -> None:
    info = FakeDrafter(lambda prefix: torch.zeros(V), V, 3).info
    assert expected_tokens(info, GREEDY) == pytest.approx([1, 1.6, 1.96, 2.176])
    old = replace(info, acceptance=Acceptance(sampled=(0.5, 0.4)))
    assert expected_tokens(old, GREEDY) == expected_tokens(old, SAMPLED) == pytest.approx([1, 1.5, 1.7, 1.78])
    both = replace(info, acceptance=Acceptance(sampled=(0.5, 0.4), greedy=(0.8, 0.5)))
    assert expected_tokens(both, GREEDY) == pytest.approx([1, 1.8, 2.2, 2.4])
    assert expected_tokens(both, SAMPLED) == expected_tokens(old, SAMPLED)


class NoisyMachine:
    """Rounds take their true time, and up to twice as long in half of all cases."""

    def __init__(self, seconds: Sequence[float], seed: int = 0) -> None:
        self.seconds, self.now, self.random = seconds, 0.0, random.Random(seed)
        self.calls = [0] * len(seconds)

    def work(self, k: int) -> None:
        self.calls[k] += 1
        disturbed = self.random.random() < 0.5
        self.now += self.seconds[k] * (1 + self.random.random() * disturbed)

    def clock(self) -> float:
        return self.now


def test_noise_does_not_decide() -> None:
    """Rates 1, 1.25, 1.14, 0.86, all hidden by the noise of a single look."""
    machines = [NoisyMachine([0.02, 0.024, 0.028, 0.04], seed) for seed in range(100)]
    limits = [race(m.work, [1.0, 1.5, 1.6, 1.72], 12 * 0.2, m.clock) for m in machines]
    assert limits.count(1) >= 95


def test_time_goes_to_what_is_hard_to_tell_apart_and_stops_when_all_is_clear() -> None:
    quiet = NoisyMachine([0.02, 0.0201, 0.1])
    quiet.random.random = lambda: 0.9  # type: ignore[method-assign]
    assert race(quiet.work, [1.0, 1.01, 1.01], 2.0, quiet.clock) == 0
    assert quiet.calls[2] == 3  # the warm-up and two looks
    assert quiet.calls[0] == quiet.calls[1] > 20
    clear = NoisyMachine([0.02, 0.1, 0.1])
    clear.random.random = lambda: 0.9  # type: ignore[method-assign]
    assert race(clear.work, [1.0, 1.5, 1.6], 1e9, clear.clock) == 0
    assert clear.calls == [2, 2, 3]


def test_a_slow_machine_measures_twice_all_the_same() -> None:
    machine = NoisyMachine([20.0, 20.0])
    race(machine.work, [1.0, 1.9], 1.5, machine.clock)
    assert min(machine.calls) >= 2


class TimedTarget(FakeTarget):
    """Advances a clock by the price of its tokens."""

    def __init__(self, price: Sequence[float]) -> None:
        super().__init__(lambda last: torch.zeros(V), V, max_positions=256)
        self.price, self.now = price, 0.0

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        self.now += self.price[min(len(token_ids), len(self.price)) - 1]
        return super().forward(token_ids, cache, taps)

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("price", "limit"), [([1.0] * 5, GAMMA), ([1.0, 2.0, 3.0, 4.0, 5.0], 0), ([1.0, 1.0, 1.0, 5.0, 5.0], 2)]
)
def test_measured_on_a_target_with_known_prices(price: list[float], limit: int) -> None:
    target = TimedTarget(price)
    drafter = FakeDrafter(lambda prefix: torch.zeros(V), V, GAMMA)
    drafter.info = replace(drafter.info, acceptance=Acceptance(sampled=(0.8,)))
    assert measure_draft_limit(target, drafter, GREEDY, clock=target.clock) == limit


def test_a_greedy_request_drafts_more_where_greedy_drafts_are_accepted_more() -> None:
    target = TimedTarget([1.0, 1.6, 3.0, 4.0, 5.0])
    drafter = FakeDrafter(lambda prefix: torch.zeros(V), V, GAMMA)
    drafter.info = replace(drafter.info, acceptance=Acceptance(sampled=(0.5, 0.1), greedy=(0.9, 0.1)))
    limits = [measure_draft_limit(target, drafter, params, clock=target.clock) for params in (GREEDY, SAMPLED)]
    assert limits == [1, 0]
