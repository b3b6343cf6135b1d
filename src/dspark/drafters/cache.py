"""Context keys and values of one request, per draft layer."""

import torch
from torch import Tensor

from dspark.drafters.config import DrafterConfig
from dspark.errors import CapacityError


class DraftCache:
    """Keys and values [L, K, capacity + gamma, h] of the first `length` positions; the last gamma rows are scratch."""

    def __init__(self, config: DrafterConfig, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        rows = capacity + config.block_size
        shape = (config.num_hidden_layers, config.num_key_value_heads, rows, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0

    def reserve(self, tokens: int) -> range:
        """Positions of the next `tokens` context tokens. Raises CapacityError when they do not fit."""
        if self.length + tokens > self.capacity:
            raise CapacityError(
                f"the drafter cache holds {self.length} of {self.capacity} positions and cannot take {tokens} more; "
                "open it with a larger capacity"
            )
        return range(self.length, self.length + tokens)

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write keys and values [T, K, h] of one layer behind the current length, which stays as it is."""
        end = self.length + len(key)
        self.keys[layer, :, self.length : end] = key.transpose(0, 1)
        self.values[layer, :, self.length : end] = value.transpose(0, 1)

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll a drafter cache of {self.length} positions back to {length}")
        self.length = length
