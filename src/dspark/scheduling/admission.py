"""Which candidates fit into a budget: the most valuable first. Shapes: B requests, gamma drafts each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.round import Batch


def admit(batch: Batch, value: Floats, budget: int | None, gains: Floats | None = None) -> Ints:
    """Lengths [B]: the floors, and of the other candidates `value` [gamma, B] as many as the budget holds.

    Candidates of value 0 are never admitted, equal ones by position, then slot. As value does not increase with
    position, those admitted are prefixes, and with a budget fixed before drafting the choice can be replayed as one
    that reveals a draft only after all before it are admitted: it anticipates nothing. `gains`, the other candidates in
    descending order, saves looking for the last one.
    """
    budget = batch.room if budget is None else min(budget, batch.room)
    chosen = top(batch.optional(value), max(budget - batch.floor_tokens, 0), gains)
    return chosen if batch.floors is None else chosen + batch.floors


def top(value: Floats, count: int, gains: Floats | None = None) -> Ints:
    """How many [B] of the `count` largest positive entries of `value` [gamma, B] lie in each column.

    `gains` are these entries in descending order, if they are known.
    """
    columns = value.shape[1]
    if count == 0:
        return np.zeros(columns, dtype=np.int64)
    least = _nth_largest(value, count) if gains is None else gains[min(count, len(gains)) - 1] if len(gains) else 0
    if least == 0:
        positive: Ints = (value > 0).sum(axis=0)
        return positive
    reaching = value >= least
    lengths: Ints = np.add.reduce(reaching, axis=0, dtype=np.int32).astype(np.int64)  # a third less than in int64
    surplus = int(np.count_nonzero(reaching)) - count
    if surplus > 0:
        lengths -= np.bincount(np.flatnonzero(value == least)[-surplus:] % columns, minlength=columns)
    return lengths


def _nth_largest(value: Floats, n: int) -> float:
    flat = value.flatten()
    place = max(flat.size - n, 0)
    _bits(flat).partition(place)
    return float(flat[place])


def _bits(value: Floats) -> NDArray[np.signedinteger[Any]]:
    """The memory of `value` >= 0 as integers: these have the same order, and less time goes into comparing them."""
    return value.view(np.int32 if value.dtype == np.float32 else np.int64)


def descending(value: Floats, most: int | None = None) -> Floats:
    """The positive entries of `value`, largest first, or only the first `most` of them."""
    ordered = value.flatten()
    if most is not None and most < ordered.size:
        _bits(ordered).partition(ordered.size - most)
        ordered = ordered[ordered.size - most :]
    _bits(ordered).sort()
    zero = ordered.dtype.type(0)  # one of another type would have them all converted
    return ordered[ordered.searchsorted(zero, side="right") :][::-1]
