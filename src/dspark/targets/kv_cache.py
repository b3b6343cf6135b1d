"""Keys and values of one request, preallocated."""

import torch
from torch import Tensor

from dspark.errors import CapacityError


class KVCache:
    """`keys`, `values` [layers, K, capacity, h]; positions from `length` on are free and may hold rolled-back rows."""

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype) -> None:
        shape = (layers, kv_heads, capacity, head_dim)
        self.keys: Tensor = torch.zeros(shape, dtype=dtype)
        self.values: Tensor = torch.zeros(shape, dtype=dtype)
        self.capacity = capacity
        self.length = 0

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
