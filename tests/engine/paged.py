"""Fakes whose only memory are pages: what they say follows from every position that their page table shows them.

The drafter's law is the target's, as long as its pages hold the right context: then every draft survives.
"""

import itertools
from collections.abc import Container, Iterable, Sequence

import pytest
import torch
from torch import Tensor

from dspark.core.hashed_law import HashedLaw
from dspark.drafters.fake import FakeDrafter
from dspark.engine.core import EngineCore
from dspark.nn.pages import PAGE, PagedCache, PagePool
from dspark.scheduling.round import Batch, Plan
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams, TargetOutput

MASK = -7.0


def write(cache: PagedCache, first: int, entries: Sequence[tuple[float, float]]) -> None:
    """Key and value of the positions from `first` on."""
    assert first + len(entries) <= cache.capacity, "written behind the pages"
    data, ids = cache.pool.data.numpy(), cache.table.ids
    for position, entry in enumerate(entries, first):
        data[ids[position // PAGE], 0, :, position % PAGE, 0] = entry


def read(cache: PagedCache) -> list[int]:
    """The tokens of all positions, each of which must hold its own number."""
    pages = cache.pool.data.numpy()[cache.table.ids[: cache.table.count], 0, :, :, 0]
    keys, values = pages.transpose(1, 0, 2).reshape(2, -1)[:, : cache.length]
    assert keys.tolist() == list(range(cache.length)), f"positions hold those of {keys}"
    return values.astype(int).tolist()


class PagedTarget(FakeTarget):
    """A `RaggedTarget` that remembers nothing but its pages, and looks back to the first token."""

    def __init__(self, vocab_size: int, seed: int, max_positions: int = 160) -> None:
        super().__init__(HashedLaw(vocab_size, seed, None), vocab_size, max_positions, max_positions)

    def new_pages(self, pages: int) -> PagePool:
        return PagePool(pages, 1, 1, 1)

    def forward_ragged(
        self, token_ids: Tensor, caches: Sequence[PagedCache], counts: Sequence[int], taps: Sequence[int] = ()
    ) -> TargetOutput:
        rows: list[list[float]] = []
        for part, cache in zip(token_ids.split(list(counts)), caches, strict=True):
            first, cache.length = cache.length, cache.length + len(part)
            write(cache, first, list(enumerate(part.tolist(), first)))
            tokens = read(cache)
            rows += [self._row(tokens, position) for position in range(first, cache.length)]
        states = torch.tensor(rows)
        features = [self._at_layer(states, layer) for layer in taps]
        return TargetOutput(
            self._at_layer(states, self.info.num_layers - 1), torch.cat(features, -1) if features else states[:, :0]
        )


class PagedBlocks:
    """Blocks that go on from the texts that the drafter's pages hold."""

    def __init__(self, law: HashedLaw, texts: list[list[int]]) -> None:
        self._law, self._texts = law, texts

    def step(self, previous: Tensor) -> tuple[Tensor, None]:
        for text, token in zip(self._texts, previous.tolist(), strict=True):
            text.append(token)
        return torch.stack([self._law(text) for text in self._texts]), None


class PagedDrafter(FakeDrafter):
    """A `BatchDrafter` that keeps the position and the token of each feature row, and writes its blocks behind them."""

    def __init__(self, target: PagedTarget, gamma: int) -> None:
        assert isinstance(target.law, HashedLaw)
        super().__init__(target.law, target.info.vocab_size, gamma, 2 * target.info.hidden_size)
        self._token = target.info.hidden_size - 1

    def new_pages(self, pages: int) -> PagePool:
        return PagePool(pages, 1, 1, 1)

    def extend_ragged(self, features: Tensor, caches: Sequence[PagedCache], counts: Sequence[int]) -> None:
        for part, cache in zip(features.split(list(counts)), caches, strict=True):
            write(cache, cache.length, part[:, [1, self._token]].tolist())
            cache.length += len(part)

    def begin_each(self, anchors: Sequence[int], caches: Sequence[PagedCache], gamma: int) -> PagedBlocks:
        texts = [read(cache) for cache in caches]
        for cache in caches:
            write(cache, cache.length, [(MASK, MASK)] * gamma)
        assert isinstance(self.law, HashedLaw)
        return PagedBlocks(self.law, texts)


def rest(core: EngineCore, rounds: Container[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler draft all it may but in some rounds, the first being 0, where it rests."""
    number = itertools.count()

    def plan(batch: Batch) -> Plan:
        now = next(number)
        return Plan(batch, now, drafts=now not in rounds and batch.room > 0, full=True)

    monkeypatch.setattr(core._runner._planner.scheduler, "plan", plan)


def texts(core: EngineCore, prompts: Iterable[tuple[list[int], int]], aborted: int | None = None) -> list[list[int]]:
    """What each prompt is answered, in as many tokens as it says; the third step ends the `aborted` one."""
    told: dict[int, list[int]] = {}
    for prompt, most in prompts:
        told[core.add(prompt, SamplingParams(0.0, max_tokens=most, ignore_eos=True))] = []
    for step in range(1000):
        if step == 3 and aborted is not None:
            core.abort(aborted)
        for event in core.step():
            told[event.request_id] += event.token_ids
        assert core.last is not None
        assert core.last.accepted == core.last.verified, "a draft fell: the drafter's pages hold another context"
        if core.idle:
            assert core.memory.manager.used == 0
            return list(told.values())
    raise AssertionError("the engine does not come to an end")
