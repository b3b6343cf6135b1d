"""Keys and values of many requests in pages of a common pool, so that memory follows what requests really hold.

Shapes: P pages, L layers, K key/value heads, h head width, T positions.
"""

from collections.abc import Sequence
from enum import Enum
from math import prod

import numpy as np
import torch
from torch import Tensor

from dspark.errors import CapacityError, CompatibilityError
from dspark.types import Pages

PAGE = 16
"""Positions of a page."""


def pages_for(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)


class PageLayout(Enum):
    """How numbers stand in a cell, the keys or values of one layer and head at the positions of a page.

    ROWS as torch wants them, [PAGE, h]. The others are made for compiled kernels: for VECTORS keys are [h, PAGE], so
    that a vector holds positions; for TILES all stand in pairs, as a matrix unit takes them, and h is padded.
    """

    ROWS = "rows"
    VECTORS = "vectors"
    TILES = "tiles"


_TILE_WIDTH = 32
_ALIGNMENT = 64
"""Bytes of a cache line, on which pools begin, as torch's own memory does."""


class PagePool:
    """Keys, then values, of all layers: `data` [P, L, 2K, PAGE, h], allocated once; `layout` orders the last two axes.

    TILES are bfloat16, VECTORS float32, ROWS of any `dtype`.
    """

    def __init__(
        self,
        pages: int,
        layers: int,
        kv_heads: int,
        head_width: int,
        layout: PageLayout = PageLayout.ROWS,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.pages = pages
        self.layout = layout
        self.shape = (layers, kv_heads, head_width)
        if layout is PageLayout.TILES:
            head_width, dtype = -(-head_width // _TILE_WIDTH) * _TILE_WIDTH, torch.bfloat16
        # Zeros, because what a page holds behind its positions may be multiplied by zero, and must be finite for that.
        self.data = _zeros((pages, layers, 2 * kv_heads, PAGE, head_width), dtype, device)
        self.address: int = self.data.data_ptr()

    @property
    def page_bytes(self) -> int:
        """Size of a page, all layers together."""
        return self.data[:1].numel() * self.data.element_size()

    def fits(self, other: "PagePool") -> bool:
        """Whether whoever made `other` could have made this pool."""
        own, others = self.data, other.data
        return (self.shape, self.layout, own.dtype, own.device) == (
            other.shape, other.layout, others.dtype, others.device
        )  # fmt: skip

    def write(self, ids: Tensor, layer: int, positions: Tensor, rows: Tensor) -> None:
        """Store `rows` [T, 2K, h] of `positions` [T] of a request whose pages are `ids`; only in ROWS.

        Raises CompatibilityError for other layouts, which compiled kernels write.
        """
        self.scatter(layer, ids[positions // PAGE], positions % PAGE, rows)

    def scatter(self, layer: int, pages: Tensor, places: Tensor, rows: Tensor) -> None:
        """Store `rows` [T, 2K, h] in pages [T], at places [T] in them. Raises as `write` does."""
        self._check_rows()
        self.data[pages, layer, :, places] = rows.to(self.data.dtype)

    def cells(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each a view [P, PAGE, K, h] as kernels on block tables read them; only in ROWS.

        Raises CompatibilityError for other layouts.
        """
        self._check_rows()
        keys, values = self.data[:, layer].transpose(1, 2).chunk(2, dim=2)
        return keys, values

    def _check_rows(self) -> None:
        if self.layout is not PageLayout.ROWS:
            raise CompatibilityError(f"these pages hold {self.layout.value}, which compiled kernels alone can write")

    def read(self, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [K, len(ids) * PAGE, h], gathered from pages `ids`."""
        keys, values = (self._rows(cells, index) for index, cells in enumerate(self.data[ids, layer].chunk(2, dim=1)))
        return keys.transpose(0, 1).flatten(1, 2), values.transpose(0, 1).flatten(1, 2)

    def _rows(self, cells: Tensor, values: int) -> Tensor:
        """Cells [..., PAGE, h] in the order of their two axes."""
        leading, width = cells.shape[:-2], cells.shape[-1]
        if self.layout is PageLayout.ROWS or (self.layout is PageLayout.VECTORS and values):
            return cells
        if self.layout is PageLayout.VECTORS:
            return cells.reshape(*leading, width, PAGE).transpose(-1, -2)
        if values:
            rows = cells.reshape(*leading, PAGE // 2, width, 2).transpose(-1, -2).flatten(-3, -2)
        else:
            rows = cells.reshape(*leading, width // 2, PAGE, 2).transpose(-3, -2).flatten(-2)
        return rows[..., : self.shape[-1]]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """Zeros of `shape`. On the CPU the system hands out memory as it is first written to, not gigabytes at start."""
    if device is not None and device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = prod(shape) * dtype.itemsize
    spare = np.zeros(size + _ALIGNMENT, np.uint8)  # torch.zeros would write all of it
    first = -spare.ctypes.data % _ALIGNMENT
    return torch.from_numpy(spare[first : first + size]).view(dtype).view(shape)


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
        if not isinstance(pool, PagePool):
            raise CompatibilityError(f"found a {type(pool).__name__}, expected pages from a model's new_pages()")
        self.pool = pool
        self.table = table
        self.length = 0
        self._limit = limit

    @classmethod
    def alone(cls, pool: PagePool, capacity: int) -> "PagedCache":
        """A cache that has all pages of `pool`, in order, and takes `capacity` positions."""
        table = PageTable(pool.pages)
        table.extend(range(pool.pages))
        return cls(pool, table, capacity)

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

    def room_for(self, tokens: int) -> int:
        """The end of `tokens` positions behind the length which nobody keeps: a block being drafted.

        They may pass the limit, not the pages. Raises CapacityError if they do.
        """
        if self.length + tokens > self.table.capacity:
            raise CapacityError(
                f"a block of {tokens} does not fit behind {self.length} positions: the request's pages hold "
                f"{self.table.capacity}; give it more pages"
            )
        return self.length + tokens

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll back to {length} positions: the cache holds {self.length}")
        self.length = length

    def write(self, layer: int, start: int, rows: Tensor) -> None:
        """Store `rows` [T, 2K, h], the keys and values of positions `start` ... `start` + T - 1."""
        self.pool.write(self._ids(), layer, torch.arange(start, start + len(rows), device=self.pool.data.device), rows)

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write keys and values [T, K, h] of one layer behind the current length, which stays as it is."""
        self.write(layer, self.length, torch.cat((key, value), dim=1))

    def read(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [K, `last` - `first`, h], of positions `first` ... `last` - 1: a copy."""
        pages = self._ids()[first // PAGE : pages_for(last)]
        skipped = first // PAGE * PAGE
        keys, values = self.pool.read(pages, layer)
        return keys[:, first - skipped : last - skipped], values[:, first - skipped : last - skipped]

    def _ids(self) -> Tensor:
        return torch.from_numpy(self.table.ids[: self.table.count]).long().to(self.pool.data.device)


def one_pool(caches: Sequence[object]) -> PagePool | None:
    """The pool that all of `caches` view; None if there is no such one."""
    pools = {id(cache.pool): cache.pool for cache in caches if isinstance(cache, PagedCache)}
    paged = all(isinstance(cache, PagedCache) for cache in caches)
    return next(iter(pools.values())) if paged and len(pools) == 1 else None
