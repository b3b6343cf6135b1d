"""Many requests in one call, where a target or a drafter can; request by request where it cannot.

Shapes: B requests, N tokens of all of them, m taps, d width, V_draft draft vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.engine.abilities import takes_batches, takes_ragged
from dspark.types import Cache, DraftBlock, DraftBlocks, Drafter, Target, TargetOutput


def forward_ragged(
    target: Target, token_ids: Tensor, caches: Sequence[Cache], counts: Sequence[int], taps: Sequence[int]
) -> TargetOutput:
    """Append counts[i] of `token_ids` [N] to caches[i]; their states as in `RaggedTarget`."""
    if takes_ragged(target):
        return target.forward_ragged(token_ids, caches, counts, taps)
    parts = zip(_split(token_ids, counts), caches, strict=True)
    outputs = [target.forward(part, cache, taps) for part, cache in parts]
    last_hidden = torch.cat([output.last_hidden for output in outputs])
    return TargetOutput(last_hidden, torch.cat([output.features for output in outputs]))


def extend_ragged(drafter: Drafter, features: Tensor, caches: Sequence[Cache], counts: Sequence[int]) -> None:
    """Append counts[i] rows of `features` [N, m * d] to the context of caches[i]."""
    if takes_batches(drafter):
        drafter.extend_ragged(features, caches, counts)
        return
    for part, cache in zip(_split(features, counts), caches, strict=True):
        drafter.extend(part, cache)


def begin_each(drafter: Drafter, anchors: Sequence[int], caches: Sequence[Cache], gamma: int) -> DraftBlocks:
    """A block of `gamma` slots behind each of B anchors."""
    if takes_batches(drafter):
        return drafter.begin_each(anchors, caches, gamma)
    return _Blocks([drafter.begin(anchor, cache, gamma) for anchor, cache in zip(anchors, caches, strict=True)])


class _Blocks:
    """`DraftBlocks` of blocks that were begun one by one."""

    def __init__(self, blocks: Sequence[DraftBlock]) -> None:
        self._blocks = blocks

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """Float32 logits [B, V_draft] of the next slots, and their confidence logits [B]."""
        steps = [block.step(token) for block, token in zip(self._blocks, previous.tolist(), strict=True)]
        confidences = [confidence for _, confidence in steps if confidence is not None]
        known = torch.tensor(confidences) if len(confidences) == len(steps) else None
        return torch.stack([logits for logits, _ in steps]), known


def _split(rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    return torch.split(rows, list(counts))
