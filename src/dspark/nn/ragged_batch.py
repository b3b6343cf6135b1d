"""What a forward over many requests must know of them, in one tensor that travels to the device once a step.

Shapes: B requests, N rows (new positions) of all of them, M pages of the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspark.errors import CapacityError
from dspark.nn.pages import PAGE, PagedCache, pages_for

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Room:
    """Sizes that a batch is padded to, so that its tensors have the shapes of another: a CUDA graph fixes them."""

    requests: int
    pages: int


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Whose the rows are, and where their keys and values stand. All tensors are int32 parts of `data`.

    Request b has rows `starts[b]` ... `starts[b + 1]` - 1 of N; with them it is `used[b]` positions long, on pages
    `tables[b]`. A row stands at position `positions[n]`, which is cell `cells[n]` = page * PAGE + place in the page.
    `most_rows` and `most_used` bound the rows and positions of a request.
    """

    data: Tensor
    starts: Tensor
    used: Tensor
    tables: Tensor
    positions: Tensor
    cells: Tensor
    most_rows: int
    most_used: int

    @classmethod
    def of(
        cls, caches: Sequence[PagedCache], counts: Sequence[int], device: torch.device, room: Room | None = None
    ) -> "RaggedBatch":
        """The next `counts[i]` positions behind each of `caches`, whose pages must reach so far.

        With `room`, requests without rows and unused columns of the table fill it up.

        Raises:
            CapacityError: there are more requests or pages than `room` has.
        """
        lengths, rows = np.array([cache.length for cache in caches]), np.array(counts)
        used = lengths + rows
        pages = pages_for(int(used.max(initial=1)))
        most_rows, most_used = int(rows.max(initial=0)), int(used.max(initial=1))
        if room is not None:
            most_rows, most_used = int(rows.sum()), room.pages * PAGE
        room = room or Room(len(caches), pages)
        if len(caches) > room.requests or pages > room.pages:
            raise CapacityError(f"{len(caches)} requests of up to {pages} pages do not fit {room}; raise its sizes")
        tables = _tables(caches, used, room)
        owners = np.repeat(np.arange(len(caches)), rows)
        starts = np.full(room.requests + 1, len(owners))
        starts[: len(caches)] = rows.cumsum() - rows
        positions = np.arange(len(owners)) + (lengths - starts[: len(caches)])[owners]
        cells = tables[owners, positions // PAGE] * PAGE + positions % PAGE
        all_used = np.zeros(room.requests)
        all_used[: len(caches)] = used
        parts = [part.astype(np.int32) for part in (starts, all_used, tables.ravel(), positions, cells)]
        data = _sent(np.concatenate(parts), device)
        return cls(data, *_parts(data, room, len(owners)), most_rows, most_used)

    def on(self, data: Tensor) -> "RaggedBatch":
        """A batch of the same shapes and bounds whose numbers are `data`, that of another."""
        room = Room(*self.tables.shape)
        return RaggedBatch(data, *_parts(data, room, len(self.cells)), self.most_rows, self.most_used)

    def places(self) -> tuple[Tensor, Tensor]:
        """Pages [N] and places in them [N] of the rows, int64 as torch indexes."""
        cells = self.cells.long()
        return cells // PAGE, cells % PAGE

    def owners(self) -> Tensor:
        """The request [N] of each row."""
        rows = torch.arange(len(self.cells), dtype=torch.int32, device=self.data.device)
        return torch.searchsorted(self.starts[1:], rows, right=True)


def _parts(data: Tensor, room: Room, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tensors that `data` holds, in order."""
    sizes = [room.requests + 1, room.requests, room.requests * room.pages, rows, rows]
    starts, used, tables, positions, cells = data.split_with_sizes(sizes)
    return starts, used, tables.view(room.requests, room.pages), positions, cells


def _tables(caches: Sequence[PagedCache], used: NDArray[np.int64], room: Room) -> Numbers:
    tables = np.zeros((room.requests, room.pages), np.int32)
    for row, (cache, length) in enumerate(zip(caches, used.tolist(), strict=True)):
        held = pages_for(length)
        tables[row, :held] = cache.table.ids[:held]
    return tables


def _sent(numbers: Numbers, device: torch.device) -> Tensor:
    """Copied without waiting for the device, where that can be: the memory must be pinned for it."""
    host = torch.from_numpy(numbers)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
