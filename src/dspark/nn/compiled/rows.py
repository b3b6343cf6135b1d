"""Where the rows of a compiled call stand, for all requests at once. B requests, N rows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dspark.nn.pages import PagedCache

ROW = np.dtype([("pool", np.int64), ("table", np.int64), ("position", np.int64), ("visible", np.int64)])
"""`Row` of decoder.cpp: addresses of a pool and of a request's page table, a position, how many positions it sees."""

Rows = NDArray[np.void]


def next_rows(caches: Sequence[PagedCache], counts: Sequence[int]) -> Rows:
    """The next `counts[i]` positions of `caches[i]`, request after request: each sees those up to itself. [N]."""
    rows, _ = _rows(caches, counts)
    rows["visible"] = rows["position"] + 1
    return rows


def block_rows(caches: Sequence[PagedCache], width: int) -> Rows:
    """The next `width` positions of every cache, each seeing the context and its whole block. [B * width]."""
    rows, starts = _rows(caches, [width] * len(caches))
    rows["visible"] = starts + width
    return rows


def _rows(caches: Sequence[PagedCache], counts: Sequence[int]) -> tuple[Rows, NDArray[np.int64]]:
    """Rows without what they see, and each row's length of its cache."""
    requests = np.array([(c.pool.address, c.table.address, c.length, 0) for c in caches], dtype=ROW)
    before = np.cumsum(counts) - counts
    rows = np.repeat(requests, counts)
    starts = rows["position"].copy()
    rows["position"] += np.arange(len(rows)) - np.repeat(before, counts)
    return rows, starts
