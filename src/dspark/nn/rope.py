"""Rotary position embedding, rotate-half convention. Frequencies are float32 everywhere (contract 1)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """How a model scales its rotary frequencies; beyond `kind` and `theta`, each kind reads only the fields it needs.

    `original_positions` is the context length before scaling. `attention_factor` None means YaRN's own formula, which
    `mscale` and `mscale_all_dim` modify when both are set.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


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
        return cls(plain_frequencies(head_dim, theta))

    @classmethod
    def scaled(cls, head_dim: int, settings: RopeSettings) -> "Rotary":
        """Frequencies scaled as `settings` say."""
        plain = plain_frequencies(head_dim, settings.theta)
        if settings.kind == "linear":
            return cls(plain / settings.factor)
        if settings.kind == "llama3":
            return cls(_llama3_frequencies(plain, settings))
        if settings.kind == "yarn":
            return cls(_yarn_frequencies(plain, head_dim, settings), _yarn_attention_scale(settings))
        return cls(plain)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [..., rotary_dim], of integer `positions` [...], as `apply_rotary` wants them.

        The first half of `sin` is negated: a rotation is then one product with the halves swapped.
        """
        if self.inverse_frequencies.device != positions.device:  # copied once: a copy makes the host wait
            self.inverse_frequencies = self.inverse_frequencies.to(positions.device)
        angles = positions.float().unsqueeze(-1) * self.inverse_frequencies
        cos, sin = angles.cos() * self.attention_scale, angles.sin() * self.attention_scale
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def plain_frequencies(head_dim: int, theta: float) -> Tensor:
    """theta^(-2i / head_dim) for i = 0 ... head_dim / 2 - 1, float32."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def _llama3_frequencies(plain: Tensor, settings: RopeSettings) -> Tensor:
    """Llama 3.1: long wavelengths divided by the factor, short ones kept, a linear blend between."""
    wavelengths = 2 * math.pi / plain
    span = settings.high_freq_factor - settings.low_freq_factor
    blend = ((settings.original_positions / wavelengths - settings.low_freq_factor) / span).clamp(0, 1)
    return (1 - blend) * plain / settings.factor + blend * plain


def _yarn_frequencies(plain: Tensor, head_dim: int, settings: RopeSettings) -> Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): interpolate dimensions that turn fewer than beta_slow times."""

    def dimension_of(turns: float) -> float:
        turned = settings.original_positions / (turns * 2 * math.pi)
        return head_dim * math.log(turned) / (2 * math.log(settings.theta))

    low, high = dimension_of(settings.beta_fast), dimension_of(settings.beta_slow)
    if settings.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    steps = torch.arange(head_dim // 2, dtype=torch.float32)
    interpolated = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / settings.factor * interpolated + plain * (1 - interpolated)


def _yarn_attention_scale(settings: RopeSettings) -> float:
    """The factor on cos and sin: 0.1 ln(factor) + 1 unless the model overrides it."""

    def magnitude(mscale: float) -> float:
        return 1.0 if settings.factor <= 1 else 0.1 * mscale * math.log(settings.factor) + 1.0

    if settings.attention_factor is not None:
        return settings.attention_factor
    if settings.mscale and settings.mscale_all_dim:
        return magnitude(settings.mscale) / magnitude(settings.mscale_all_dim)
    return magnitude(1.0)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [..., T, heads, head_dim] by `cos`, `sin` [..., T, head_dim] of `Rotary.at` (broadcast over heads)."""
    cos, sin = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
