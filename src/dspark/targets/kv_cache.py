"""Keys and values of one request, preallocated."""

import torch
from torch import Tensor

from dspark.errors import CapacityError
from dspark.nn.compiled.library import RowStruct
from dspark.nn.compiled.stack import StackCache
from dspark.targets.config import DecoderConfig


class KVCache:
    """`keys[layer]`, `values[layer]` [K, capacity, h], views of `whole_keys`, `whole_values` [L, K, capacity, h].

    Positions from `length` on are free, or rolled back.

    One block per layer holds both, keys first, so that a forward writes them in one copy.
    """

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype) -> None:
        whole = torch.zeros((layers, 2 * kv_heads, capacity, head_dim), dtype=dtype)
        self.whole_keys, self.whole_values = whole[:, :kv_heads], whole[:, kv_heads:]
        self._blocks = whole.unbind()
        self.keys: list[Tensor] = [block[:kv_heads] for block in self._blocks]
        self.values: list[Tensor] = [block[kv_heads:] for block in self._blocks]
        self.capacity = capacity
        self.length = 0

    def fits(self, config: DecoderConfig, dtype: torch.dtype) -> bool:
        """Whether a decoder of `config` that computes in `dtype` could have opened this cache."""
        shape = (config.num_layers, config.num_kv_heads, self.capacity, config.head_dim)
        return self.whole_keys.shape == shape and self.whole_keys.dtype is dtype

    def write(self, layer: int, start: int, rows: Tensor) -> None:
        """Store `rows` [T, 2K, h], the keys and values of positions `start` ... `start` + T - 1."""
        self._blocks[layer].narrow(1, start, len(rows)).copy_(rows.transpose(0, 1))

    def places(self, start: int, count: int) -> list[RowStruct]:
        """Positions `start` ... `start` + `count` - 1 for a compiled stack, each seeing those up to itself."""
        return StackCache(self.whole_keys, self.whole_values).places(start, count)

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
