"""Context keys and values of one request, per draft layer."""

import torch
from torch import Tensor

from dspark.drafters.config import DecoderShape
from dspark.errors import CapacityError, CompatibilityError
from dspark.types import Cache


class DraftCache:
    """Keys and values [L, K, capacity + scratch, h], of which the first `length` positions are context.

    A block being drafted writes its own behind them, into at most `scratch` rows that nobody keeps.
    """

    def __init__(self, config: DecoderShape, capacity: int, scratch: int, like: Tensor) -> None:
        shape = (config.num_hidden_layers, config.num_key_value_heads, capacity + scratch, config.head_dim)
        self.keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.values = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.capacity = capacity
        self.length = 0

    @classmethod
    def own(cls, cache: Cache, config: DecoderShape) -> "DraftCache":
        """`cache` itself. Raises CompatibilityError unless a drafter of `config` opened it."""
        if not isinstance(cache, cls):
            raise CompatibilityError(
                f"found a {type(cache).__name__}, expected a cache from this drafter's new_cache()"
            )
        found = (cache.keys.shape[0], cache.keys.shape[1], cache.keys.shape[3])
        expected = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        if found != expected:
            raise CompatibilityError(f"found a cache of (layers, heads, width) {found}, this drafter has {expected}")
        return cache

    def reserve(self, tokens: int) -> range:
        """Positions of the next `tokens` context tokens. Raises CapacityError when they do not fit."""
        if self.length + tokens > self.capacity:
            raise CapacityError(
                f"the drafter cache holds {self.length} of {self.capacity} positions and cannot take {tokens} more; "
                "open it with a larger capacity"
            )
        return range(self.length, self.length + tokens)

    def room_for(self, tokens: int) -> int:
        """The end of a block of `tokens`, at most `scratch`, behind the context."""
        return self.length + tokens

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write keys and values [T, K, h] of one layer behind the current length, which stays as it is."""
        end = self.length + len(key)
        self.keys[layer, :, self.length : end] = key.transpose(0, 1)
        self.values[layer, :, self.length : end] = value.transpose(0, 1)

    def read(self, layer: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Views of keys and values, each [K, `last` - `first`, h], of positions `first` ... `last` - 1."""
        return self.keys[layer, :, first:last], self.values[layer, :, first:last]

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll a drafter cache of {self.length} positions back to {length}")
        self.length = length
