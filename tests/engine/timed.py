"""A target and a drafter whose prices are known, and the clock that they advance."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dspark.drafters.fake import FakeBlock, FakeDrafter
from dspark.targets.fake import FakeTarget
from dspark.types import NOT_RECORDED, Acceptance, Cache, TargetOutput

V = 5


class FakeClock:
    """Seconds that pass only when something is paid for; `jitter` is called for the factor of each payment."""

    def __init__(self, jitter=lambda: 1.0) -> None:  # type: ignore[no-untyped-def]
        self.now, self._jitter = 0.0, jitter

    def pay(self, seconds: float) -> None:
        self.now += seconds * self._jitter()

    def __call__(self) -> float:
        return self.now


class TimedTarget(FakeTarget):
    """A forward of n tokens costs price[n - 1] (the last price for more), and `per_position` for each before them."""

    def __init__(
        self, clock: FakeClock, price: Sequence[float], per_position: float = 0.0, max_positions: int = 256
    ) -> None:
        super().__init__(lambda last: torch.zeros(V), V, max_positions=max_positions)
        self.clock, self.price, self.per_position = clock, price, per_position

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        self.clock.pay(self.price[min(len(token_ids), len(self.price)) - 1] + self.per_position * cache.length)
        return super().forward(token_ids, cache, taps)


class TimedDrafter(FakeDrafter):
    """A block costs `begin`, and `step` for each draft."""

    def __init__(
        self,
        clock: FakeClock,
        gamma: int,
        begin: float = 0.0,
        step: float = 0.0,
        acceptance: Acceptance = NOT_RECORDED,
    ) -> None:
        super().__init__(self._law, V, gamma)
        self.info = replace(self.info, acceptance=acceptance)
        self.clock, self.price_of_begin, self.price_of_step = clock, begin, step

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> FakeBlock:
        self.clock.pay(self.price_of_begin)
        return super().begin(anchor, cache, gamma)

    def _law(self, prefix: Sequence[int]) -> Tensor:
        self.clock.pay(self.price_of_step)
        return torch.zeros(V)
