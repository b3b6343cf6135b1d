"""Rotary settings of a config.json: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (older)."""

from collections.abc import Mapping
from typing import Any, get_args

from dspark.errors import ConfigError
from dspark.nn.rope import RopeKind, RopeSettings

_DEFAULT_THETA = 10000.0
_SCALED_FROM_ORIGINAL = ("llama3", "yarn")


def parse_rope(data: Mapping[str, Any]) -> RopeSettings:
    """The rotary settings of a config.json; ConfigError for kinds whose frequencies this code does not know."""
    scaling = dict(data.get("rope_parameters") or data.get("rope_scaling") or {})
    kind: RopeKind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise ConfigError(f"rope type {kind!r} is not supported (supported: {', '.join(get_args(RopeKind))})")
    rotated = scaling.get("partial_rotary_factor", data.get("partial_rotary_factor"))
    if rotated not in (None, 1, 1.0):
        raise ConfigError(f"partial_rotary_factor {rotated} is not supported; the Llama family rotates whole heads")
    theta = scaling.get("rope_theta", data.get("rope_theta", _DEFAULT_THETA))
    if kind == "default":
        return RopeSettings(theta=float(theta))
    original = _original_positions(data, scaling) if kind in _SCALED_FROM_ORIGINAL else 0
    return RopeSettings(
        theta=float(theta),
        kind=kind,
        factor=_factor(data, scaling, original),
        original_positions=original,
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        attention_factor=scaling.get("attention_factor"),
        mscale=scaling.get("mscale"),
        mscale_all_dim=scaling.get("mscale_all_dim"),
        truncate=bool(scaling.get("truncate", True)),
    )


def _original_positions(data: Mapping[str, Any], scaling: Mapping[str, Any]) -> int:
    inside, outside = scaling.get("original_max_position_embeddings"), data.get("original_max_position_embeddings")
    return int(outside or inside or data["max_position_embeddings"])


def _factor(data: Mapping[str, Any], scaling: Mapping[str, Any], original: int) -> float:
    factor = scaling.get("factor")
    if factor is None and original:
        factor = data["max_position_embeddings"] / original
    if not isinstance(factor, int | float) or factor <= 0:
        raise ConfigError(f"rope scaling has factor {factor!r}; expected a positive number")
    return float(factor)
