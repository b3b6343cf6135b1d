"""What the engine's memory is planned from: pools of a size that no machine has, or a small one."""

import os
from pathlib import Path

import pytest

from dspark.core.hashed_law import HashedLaw
from dspark.drafters.fake import FakeDrafter
from dspark.engine import memory
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.memory import EngineMemory
from dspark.engine.strategy import PLAIN, Strategy
from dspark.errors import CapacityError
from dspark.nn.pages import PAGE, PagePool
from dspark.scheduling.registry import SchedulerConfig
from dspark.targets.fake import FakeCache, FakeTarget
from dspark.types import SamplingParams

V, HEADS, WIDTH = 4, 2, 8
PAGE_BYTES = 2 * HEADS * PAGE * WIDTH * 4  # of one layer


class PagedTarget(FakeTarget):
    def new_pages(self, pages: int) -> PagePool:
        return PagePool(pages, 3, HEADS, WIDTH)

    def forward_ragged(self, *arguments: object) -> None:
        raise NotImplementedError


class PagedDrafter(FakeDrafter):
    new_pages = PagedTarget.new_pages

    def extend_ragged(self, *arguments: object) -> None:
        raise NotImplementedError

    begin_each = extend_ragged


def engine_memory(pages: int | None = None, requests: int = 4) -> EngineMemory:
    target = PagedTarget(HashedLaw(V, 1, 1), V, 1, max_positions=100)
    drafter = PagedDrafter(HashedLaw(V, 1, 1), V, 3, 6)
    return EngineMemory(target, [PLAIN, Strategy("drafts", drafter)], EngineOptions(requests, pages=pages))


@pytest.mark.parametrize(("free", "pages"), [(None, 28), (10**12, 28), (2 * 6 * PAGE_BYTES * 9, 9)])
def test_pages_are_planned_from_what_both_pools_take(
    monkeypatch: pytest.MonkeyPatch, free: int | None, pages: int
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    assert engine_memory().manager.pages == pages


def test_one_request_too_long_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2 * 6 * PAGE_BYTES * 5)
    with pytest.raises(CapacityError, match=r"set pages=5 to serve requests of up to 80 positions, or set pages=7"):
        engine_memory()
    assert engine_memory(pages=5).manager.pages == 5


class Crowded(FakeDrafter):
    """Has no room for its cache at first."""

    room = False

    def new_cache(self, capacity: int) -> FakeCache:
        if not self.room:
            raise MemoryError("no room for a chain's cache")
        return super().new_cache(capacity)


def test_a_request_that_gets_no_cache_holds_no_pages() -> None:
    drafter = Crowded(HashedLaw(V, 1, 1), V, 3, 6)
    options = EngineOptions(2, pages=7, lookup=None, scheduler=SchedulerConfig("fixed", park=False))
    core = EngineCore(FakeTarget(HashedLaw(V, 1, 1), V, 1), [Strategy("drafts", drafter)], options)
    number = core.add([0] * 20, SamplingParams(max_tokens=4))
    with pytest.raises(MemoryError, match="chain"):
        core.step()
    assert core.memory.manager.used == 0
    drafter.room = True
    ends = [event for _ in range(20) for event in core.step() if event.result is not None]
    assert [(end.request_id, end.finish_reason) for end in ends] == [(number, "length")]
    assert core.idle
    assert core.memory.manager.used == 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell how much is resident")
def test_claiming_takes_at_once_what_pages_would_take_as_they_are_written() -> None:
    planned = engine_memory(pages=8_000)
    size = 2 * 8_000 * 3 * PAGE_BYTES
    before = resident_bytes()
    planned.claim()
    assert resident_bytes() - before > 0.9 * size


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
