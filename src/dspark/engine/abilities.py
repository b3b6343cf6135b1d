"""What models can do beyond the least, asked once for each class: asking a protocol anew takes 30 us each time."""

from typing import Any, TypeGuard

from dspark.types import BatchDrafter, DraftBlocks, Drafter, GreedyBlocks, GreedyTarget, RaggedTarget, Target

_KNOWN: dict[tuple[type, type], bool] = {}


def takes_ragged(target: Target) -> TypeGuard[RaggedTarget]:
    """Whether it takes the tokens of many requests in one forward."""
    return _can(target, RaggedTarget)


def knows_best(target: Target) -> TypeGuard[GreedyTarget]:
    """Whether it finds likeliest tokens without all logits."""
    return _can(target, GreedyTarget)


def takes_batches(drafter: Drafter) -> TypeGuard[BatchDrafter]:
    """Whether it drafts for many requests together."""
    return _can(drafter, BatchDrafter)


def knows_likeliest(blocks: DraftBlocks) -> TypeGuard[GreedyBlocks]:
    """Whether they draft all their slots in one go."""
    return _can(blocks, GreedyBlocks)


def _can(one: object, protocol: Any) -> bool:
    key = (type(one), protocol)
    if key not in _KNOWN:
        _KNOWN[key] = isinstance(one, protocol)
    return _KNOWN[key]
