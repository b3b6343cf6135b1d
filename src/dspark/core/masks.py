"""Who sees whom in a training step: the one definition of the block mask, dense, tiled or asked index by index.

Documents are packed end to end into T context tokens. Blocks of gamma slots hang on A anchors, given as packed indices
in ascending order. A slot of anchor a in document s sees the context of s strictly before a (with a sliding window, the
last so many tokens of it, alike for all slots), and every slot of its own block in both directions; nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from dspark.errors import ConfigError

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query index, key index) -> whether the query sees the key; FlexAttention's form of a mask."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Blocks `first:last` of one document and the context `start:stop` that any of them can see.

    `visible` [last - first, stop - start] says which of these keys each block sees.
    """

    first: int
    last: int
    start: int
    stop: int
    visible: Tensor


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A blocks of `gamma` slots at ascending packed indices `anchors` [A] among documents of `lengths` tokens.

    `window` is the context that a block sees, counted back from its anchor; None is all of it.
    """

    anchors: Tensor
    lengths: tuple[int, ...]
    gamma: int
    window: int | None = None

    @classmethod
    def pack(cls, anchors: Tensor, lengths: Sequence[int], gamma: int, window: int | None = None) -> "BlockLayout":
        """Check and build. Raises ConfigError for anchors out of order or out of range."""
        total = sum(lengths)
        if anchors.numel() and (int(anchors.min()) < 0 or int(anchors.max()) >= total):
            raise ConfigError(f"anchors must lie in [0, {total}), found {int(anchors.min())} to {int(anchors.max())}")
        if bool((anchors[1:] < anchors[:-1]).any()):
            raise ConfigError("anchors must be ascending packed indices; sort them")
        return cls(anchors, tuple(lengths), gamma, window)

    def documents(self) -> Tensor:
        """Document number [T] of every context token."""
        lengths = torch.tensor(self.lengths, device=self.anchors.device)
        return torch.repeat_interleave(torch.arange(len(self.lengths), device=lengths.device), lengths)

    def positions(self) -> Tensor:
        """Position [T] of every context token within its document."""
        return torch.cat([torch.arange(n, device=self.anchors.device) for n in self.lengths])

    def block_positions(self) -> Tensor:
        """Position [A, gamma] of every slot: the anchor keeps its own, slot k stands k further."""
        return self.positions()[self.anchors, None] + torch.arange(self.gamma, device=self.anchors.device)

    def mask_mod(self) -> MaskMod:
        """The definition, by index: slot `query` of A * gamma, key `key` of T + A * gamma, of shapes that broadcast.

        Keys are [context ; slots of all blocks]. Batch and head do not matter, so both may be anything.
        """
        anchors, documents, gamma, total = self.anchors, self.documents(), self.gamma, sum(self.lengths)

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            block = query // gamma
            anchor = anchors[block]
            same_document = documents[key.clamp(max=total - 1)] == documents[anchor]
            same_block = (key >= total) & ((key - total) // gamma == block)
            return (self._reach(key, anchor) & same_document) | same_block

        return sees

    def context_visible(self) -> Tensor:
        """[A, T]: what the slots of each block see of the context."""
        first_slots = torch.arange(len(self.anchors), device=self.anchors.device)[:, None] * self.gamma
        return self._seen(first_slots, torch.arange(sum(self.lengths), device=self.anchors.device))

    def dense(self) -> Tensor:
        """The whole mask [A * gamma, T + A * gamma] over keys [context ; all blocks], True where a query sees a key."""
        slots = torch.arange(len(self.anchors) * self.gamma, device=self.anchors.device)
        return self._seen(slots[:, None], torch.arange(sum(self.lengths) + len(slots), device=slots.device))

    def _seen(self, query: Tensor, key: Tensor) -> Tensor:
        nowhere = query.new_zeros(())
        return self.mask_mod()(nowhere, nowhere, query, key)

    def tiles(self, size: int) -> Iterator[Tile]:
        """Cover all blocks with tiles of at most `size` blocks, each cut to the context it can see."""
        anchors, first, start = self.anchors.tolist(), 0, 0
        for end in accumulate(self.lengths):
            while first < len(anchors) and anchors[first] < end:
                last = first + 1
                while last < min(len(anchors), first + size) and anchors[last] < end:
                    last += 1
                nearest, stop = self._window_start(start, anchors[first]), anchors[last - 1]
                keys = torch.arange(nearest, stop, device=self.anchors.device)
                yield Tile(first, last, nearest, stop, self._reach(keys, self.anchors[first:last, None]))
                first = last
            start = end

    def _reach(self, keys: Tensor, anchors: Tensor) -> Tensor:
        """Whether packed `keys` stand before `anchors` and not too far; shapes broadcast."""
        before = keys < anchors
        return before if self.window is None else before & (keys >= anchors - self.window)

    def _window_start(self, start: int, anchor: int) -> int:
        """The first context token of a document from `start` on that a block at `anchor` sees."""
        return start if self.window is None else max(start, anchor - self.window)
