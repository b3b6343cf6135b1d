"""Rotary position embedding, rotate-half convention. Frequencies are float32 everywhere (contract 1)."""

import torch
from torch import Tensor


class Rotary:
    """Cosines and sines for absolute positions, from inverse frequencies [rotary_dim / 2] kept in float32.

    `attention_scale` multiplies both (YaRN's magnitude correction, 1 elsewhere).
    """

    def __init__(self, inverse_frequencies: Tensor, attention_scale: float = 1.0) -> None:
        self.inverse_frequencies = inverse_frequencies.float()
        self.attention_scale = attention_scale

    @classmethod
    def plain(cls, head_dim: int, theta: float) -> "Rotary":
        """Unscaled frequencies theta^(-2i / head_dim)."""
        return cls(theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [..., rotary_dim], of integer `positions` [...]."""
        angles = positions.float().unsqueeze(-1) * self.inverse_frequencies.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.attention_scale, angles.sin() * self.attention_scale


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [..., T, heads, head_dim] by `cos`, `sin` [..., T, head_dim] (broadcast over heads)."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    cos, sin = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
    return x * cos + rotated * sin
