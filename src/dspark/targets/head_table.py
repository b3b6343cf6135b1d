"""What one forward multiplies its projected heads by: rotation, and the scale of attention scores."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.nn.rope import Rotary
from dspark.targets.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class HeadTable:
    """`cos`, `sin` [T, H + 2K, h] for queries, keys and values side by side; H + K of the heads are rotated.

    The rows of queries carry the scale h^(-1/2), and those of values leave them as they are (1 and 0): one rotation
    serves all heads of a layer, and keys and values come out in one block, as the cache stores them.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def build(cls, config: DecoderConfig, rotary: Rotary, positions: Tensor, dtype: torch.dtype) -> "HeadTable":
        """The table of `positions` [T]."""
        heads, kv_heads = config.num_heads, config.num_kv_heads
        cos, sin = (table.unsqueeze(-2) for table in rotary.at(positions))
        scale = torch.ones(heads + kv_heads, 1, device=positions.device)
        scale[:heads] = config.head_dim**-0.5
        ones = torch.ones(len(positions), kv_heads, config.head_dim, device=positions.device)
        return cls(torch.cat((cos * scale, ones), -2).to(dtype), torch.cat((sin * scale, 0 * ones), -2).to(dtype))

    def apply(self, heads: Tensor) -> Tensor:
        """`heads` [..., T, H + 2K, h] with queries rotated and scaled, and keys rotated."""
        return torch.addcmul(heads * self.cos, heads.roll(heads.shape[-1] // 2, -1), self.sin)
