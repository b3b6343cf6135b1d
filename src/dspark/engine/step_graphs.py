"""Pieces of a step that a device can replay whole: captured once for each tier, then started in one call.

Not used by the engine yet: nothing here has run on a GPU (docs/engine.md). Shapes: B blocks, G slots (gamma), N rows.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

import torch
from torch import Tensor

from dspark.drafters.dspark import DSpark, DSparkBlocks
from dspark.nn.pages import PagePool
from dspark.nn.ragged_batch import RaggedBatch
from dspark.targets.native import NativeTarget

Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]

WARM_UP = 3
"""Runs before a capture: libraries choose their kernels and allocate their workspaces in the first ones."""


class Capture(Protocol):
    """Runs `work`, and returns what it gave with a function that does the same again, into the same tensors."""

    def __call__(self, work: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]: ...


def cuda_capture(work: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
    """A `Capture` by a CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = work()
    return outputs, graph.replay


class StepGraphs:
    """Captured pieces by key. Whatever is not among a piece's inputs must stay where it is: weights, pages."""

    def __init__(self, capture: Capture = cuda_capture) -> None:
        self._capture = capture
        self._known: dict[Hashable, tuple[Tensors, Tensors, Callable[[], None]]] = {}

    def run(self, key: Hashable, work: Work, *inputs: Tensor) -> Tensors:
        """`work(*inputs)`, whose shapes follow from `key`; valid until the next run of the same key."""
        if key not in self._known:
            held = tuple(tensor.clone() for tensor in inputs)
            outputs, replay = self._capture(lambda: work(*held))
            self._known[key] = (held, outputs, replay)
        held, outputs, replay = self._known[key]
        for own, new in zip(held, inputs, strict=True):
            own.copy_(new, non_blocking=True)
        replay()
        return outputs


def verification(target: NativeTarget, pool: PagePool, like: RaggedBatch, taps: tuple[int, ...]) -> Work:
    """(token ids [N], data of a batch as `like`) -> float32 logits [N, V], features [N, m * d]."""

    def work(token_ids: Tensor, data: Tensor) -> Tensors:
        output = target.run_batch(token_ids, pool, like.on(data), taps)
        return target.logits(output.last_hidden), output.features

    return work


def greedy_drafting(drafter: DSpark, pool: PagePool, like: RaggedBatch) -> Work:
    """(anchors [B], data of a batch as `like`, its rows G for each block) -> draft target ids [B, G].

    The backbone and the sequential loop in one piece: each slot's likeliest token goes on to the next slot.
    """
    vocabulary = drafter.draft_token_ids

    def work(anchors: Tensor, data: Tensor) -> Tensors:
        batch = like.on(data)
        gamma = len(batch.cells) // len(anchors)
        blocks = DSparkBlocks(drafter, drafter.run_batch(drafter.embed_blocks(anchors, gamma), pool, batch))
        tokens, previous = [], anchors
        for _ in range(gamma):
            best = blocks.step(previous)[0].argmax(dim=-1)
            previous = best if vocabulary is None else vocabulary[best]
            tokens.append(previous)
        return (torch.stack(tokens, dim=1),)

    return work
