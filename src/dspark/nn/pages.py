"""Keys and values of many requests in pages of a common pool, so that memory follows what requests really hold.

Shapes: P pages, L layers, K key/value heads, h head width, T positions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.errors import CapacityError
from dspark.types import Pages

PAGE = 16
"""Positions of a page."""


def pages_for(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)


class PagePool:
    """Keys, then values, of all layers: `data` [P, L, 2K, PAGE, h], allocated once."""

    def __init__(
        self,
        pages: int,
        layers: int,
        kv_heads: int,
        head_width: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.pages = pages
        self.shape = (layers, kv_heads, head_width)
        # Zeros, because what a page holds behind its positions may be multiplied by zero, and must be finite for that.
        self.data = torch.zeros((pages, layers, 2 * kv_heads, PAGE, head_width), dtype=dtype, device=device)

    @property
    def page_bytes(self) -> int:
        """Size of a page, all layers together."""
        return self.data[:1].numel() * self.data.element_size()

    def write(self, ids: Tensor, layer: int, positions: Tensor, rows: Tensor) -> None:
        """Store `rows` [T, 2K, h] of `positions` [T] of a request whose pages are `ids`."""
        self.data[ids[positions // PAGE], layer, :, positions % PAGE] = rows.to(self.data.dtype)

    def read(self, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [K, len(ids) * PAGE, h], gathered from pages `ids`."""
        both = self.data[ids, layer].transpose(0, 1).flatten(1, 2)
        keys, values = both.chunk(2)
        return keys, values


class PageTable:
    """The pages of one request in order of its positions; its caches of target and drafter share it.

    `ids[:count]` are in use. The array never moves: compiled kernels read it by address.
    """

    def __init__(self, most: int) -> None:
        self.ids = np.zeros(most, np.int32)
        self.address: int = self.ids.ctypes.data
        self.count = 0

    @property
    def capacity(self) -> int:
        """Positions that the pages hold."""
        return self.count * PAGE

    def extend(self, pages: Sequence[int]) -> None:
        """Append `pages`. Raises CapacityError if the table ends before them."""
        end = self.count + len(pages)
        if end > len(self.ids):
            raise CapacityError(f"a page table of {len(self.ids)} cannot take {len(pages)} pages behind {self.count}")
        self.ids[self.count : end] = pages
        self.count = end

    def keep(self, count: int) -> None:
        """Drop all pages but the first `count`. Raises CapacityError if there are fewer."""
        if not 0 <= count <= self.count:
            raise CapacityError(f"cannot keep {count} pages: the table holds {self.count}")
        self.count = count


class PagedCache:
    """One request's view of `pool` through its `table`: `length` positions, rolled back without touching a page.

    The table may grow under the cache, which then holds more. `limit` caps the capacity below what the pages hold.
    """

    def __init__(self, pool: Pages, table: PageTable, limit: int | None = None) -> None:
        self.pool = pool
        self.table = table
        self.length = 0
        self._limit = limit

    @property
    def capacity(self) -> int:
        """Positions that it can hold now."""
        held = self.table.capacity
        return held if self._limit is None else min(held, self._limit)

    def reserve(self, tokens: int) -> int:
        """The length after `tokens` more positions; CapacityError if they do not fit."""
        if self.length + tokens > self.capacity:
            raise CapacityError(
                f"{tokens} more tokens do not fit: {self.length} of {self.capacity} cache positions are taken; "
                "give the request more pages"
            )
        return self.length + tokens

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll back to {length} positions: the cache holds {self.length}")
        self.length = length
