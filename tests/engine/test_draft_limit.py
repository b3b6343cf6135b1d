"""The limit follows measured cost: flat verification drafts all, steep verification drafts none."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspark.drafters.fake import FakeDrafter
from dspark.engine.draft_limit import best_limit, measure_draft_limit
from dspark.targets.fake import FakeTarget
from dspark.types import Cache, TargetOutput

V, GAMMA = 5, 4


def test_by_hand() -> None:
    """E = 1, 1.8, 2.44: 1/1, 1.8/1.5, 2.44/2.5 -> one draft."""
    assert best_limit([1.0, 1.2, 2.0], [0.0, 0.3, 0.5], [0.8, 0.64]) == 1


def test_ties_go_to_fewer_drafts() -> None:
    assert best_limit([1.0, 2.0], [0.0, 0.0], [1.0]) == 0


@given(
    costs=st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 10)), min_size=1, max_size=8),
    survival=st.lists(st.floats(0, 1), min_size=7, max_size=7),
)
def test_never_expected_to_be_slower_than_plain(costs: list[tuple[float, float]], survival: list[float]) -> None:
    verify, draft = [v for v, _ in costs], [0.0, *(d for _, d in costs[1:])]
    survival = sorted(survival, reverse=True)[: len(costs) - 1]
    k = best_limit(verify, draft, survival)
    assert (1 + sum(survival[:k])) / (verify[k] + draft[k]) >= 1 / verify[0] * (1 - 1e-9)


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
    assert measure_draft_limit(target, drafter, [0.8], repeats=2, clock=target.clock) == limit


def test_the_drafters_own_acceptance_decides_unless_another_is_given() -> None:
    target = TimedTarget([1.0, 1.6, 3.0, 4.0, 5.0])
    drafter = FakeDrafter(lambda prefix: torch.zeros(V), V, GAMMA)
    limits = []
    for acceptance in ((0.9, 0.1), (0.5, 0.1)):
        drafter.info = replace(drafter.info, acceptance=acceptance)
        limits.append(measure_draft_limit(target, drafter, repeats=2, clock=target.clock))
    assert limits == [1, 0]
    assert measure_draft_limit(target, drafter, [0.9, 0.1], repeats=2, clock=target.clock) == 1
