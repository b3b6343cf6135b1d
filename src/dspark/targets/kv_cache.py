"""Keys and values of one request, preallocated."""

from typing import Protocol

import torch
from torch import Tensor

from dspark.errors import CapacityError
from dspark.targets.config import DecoderConfig


class LayerCache(Protocol):
    """What torch's attention asks of a cache, paged or not. T positions, K key/value heads, h head width."""

    length: int

    def reserve(self, tokens: int) -> int: ...

    def write(self, layer: int, start: int, rows: Tensor) -> None:
        """Store `rows` [T, 2K, h], the keys and values of positions `start` ... `start` + T - 1."""
        ...

    def read(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [K, T, h], of positions `first` ... `last` - 1."""
        ...


class KVCache:
    """`keys[layer]`, `values[layer]` [K, capacity, h], as torch reads them without a copy.

    Positions from `length` on are free, or rolled back.

    One block per layer holds both, keys first, so that a forward writes them in one copy.
    """

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype) -> None:
        whole = torch.zeros((layers, 2 * kv_heads, capacity, head_dim), dtype=dtype)
        self._whole = whole
        self._blocks = whole.unbind()
        self.keys: list[Tensor] = [block[:kv_heads] for block in self._blocks]
        self.values: list[Tensor] = [block[kv_heads:] for block in self._blocks]
        self.capacity = capacity
        self.length = 0

    def fits(self, config: DecoderConfig, dtype: torch.dtype) -> bool:
        """Whether a decoder of `config` that computes in `dtype` could have opened this cache."""
        shape = (config.num_layers, 2 * config.num_kv_heads, self.capacity, config.head_dim)
        return self._whole.shape == shape and self._whole.dtype is dtype

    def write(self, layer: int, start: int, rows: Tensor) -> None:
        """Store `rows` [T, 2K, h], the keys and values of positions `start` ... `start` + T - 1."""
        self._blocks[layer].narrow(1, start, len(rows)).copy_(rows.transpose(0, 1))

    def read(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each [K, `last` - `first`, h], of positions `first` ... `last` - 1."""
        return self.keys[layer][:, first:last], self.values[layer][:, first:last]

    def reserve(self, tokens: int) -> int:
        """The length after `tokens` more positions; CapacityError if they do not fit."""
        if self.length + tokens > self.capacity:
            raise CapacityError(
                f"{tokens} more tokens do not fit: {self.length} of {self.capacity} cache positions are taken; "
                "ask for a larger capacity or send a shorter prompt"
            )
        return self.length + tokens

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll back to {length} positions: the cache holds {self.length}")
        self.length = length
