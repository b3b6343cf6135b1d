"""A ragged target and a batch drafter whose prices are known; they compute nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.nn.pages import PagedCache, PagePool
from dspark.types import Cache, TargetOutput
from tests.engine.timed import FakeClock, TimedDrafter, TimedTarget, V


def small_pages(pages: int) -> PagePool:
    return PagePool(pages, layers=1, kv_heads=1, head_width=1)


def append(caches: Sequence[Cache], counts: Sequence[int], owner: object) -> int:
    """Advance every cache, as a model does that writes its pages; they must be disjoint there. Rows in all."""
    written: set[int] = set()
    for cache, count in zip(caches, counts, strict=True):
        assert isinstance(cache, PagedCache)
        assert cache.pool is owner
        first, last = cache.length // 16, (cache.length + count - 1) // 16
        pages = cache.table.ids[first : last + 1].tolist()
        assert not written.intersection(pages)
        assert max(cache.table.ids[: cache.table.count]) < cache.pool.pages
        written.update(pages)
        cache.length = cache.reserve(count)
    return sum(counts)


class ServedTarget(TimedTarget):
    """A ragged forward costs `row` for each row, `owner` for each request, `position` for each one's positions."""

    def __init__(self, clock: FakeClock, row: float, owner: float = 0.0, position: float = 0.0, **named: int) -> None:
        super().__init__(clock, [row], **named)
        self.row, self.owner, self.position = row, owner, position
        self.calls: list[tuple[int, tuple[int, ...]]] = []

    def new_pages(self, pages: int) -> PagePool:
        self.pool = small_pages(pages)
        return self.pool

    def forward_ragged(
        self, token_ids: Tensor, caches: Sequence[Cache], counts: Sequence[int], taps: Sequence[int] = ()
    ) -> TargetOutput:
        context = caches[0].length
        rows = append(caches, counts, self.pool)
        assert rows == len(token_ids)
        self.calls.append((context, tuple(counts)))
        self.clock.pay(self.row * rows + len(caches) * (self.owner + self.position * context))
        states = torch.zeros(rows, self.info.hidden_size)
        return TargetOutput(states, torch.zeros(rows, 8))


class ServedDrafter(TimedDrafter):
    """Blocks of B requests cost `begin`, and `step` + B * `request` for every draft; showing it rows is free."""

    def __init__(self, clock: FakeClock, gamma: int, begin: float, step: float, request: float) -> None:
        super().__init__(clock, gamma, begin, step)
        self.request = request
        self.shown: list[int] = []

    def new_pages(self, pages: int) -> PagePool:
        self.pool = small_pages(pages)
        return self.pool

    def extend_ragged(self, features: Tensor, caches: Sequence[Cache], counts: Sequence[int]) -> None:
        assert append(caches, counts, self.pool) == len(features)
        self.shown.append(len(features))

    def begin_each(self, anchors: Sequence[int], caches: Sequence[Cache], gamma: int) -> "ServedBlocks":
        assert all(cache.length + gamma <= cache.capacity for cache in caches)
        self.clock.pay(self.price_of_begin)
        return ServedBlocks(self, len(anchors))


class ServedBlocks:
    def __init__(self, drafter: ServedDrafter, requests: int) -> None:
        self._drafter, self._requests = drafter, requests

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        assert previous.shape == (self._requests,)
        self._drafter.clock.pay(self._drafter.price_of_step + self._requests * self._drafter.request)
        return torch.zeros(self._requests, V), None
