"""Rotary settings of a config.json: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (older)."""

from typing import get_args

from dspark.errors import ConfigError
from dspark.nn.rope import RopeKind, RopeSettings
from dspark.targets.config_fields import ConfigFields

_DEFAULT_THETA = 10000.0
_SCALED_FROM_ORIGINAL = ("llama3", "yarn")


def parse_rope(fields: ConfigFields) -> RopeSettings:
    """The rotary settings of a config.json; ConfigError for kinds whose frequencies this code does not know."""
    scaling = fields.object("rope_parameters" if fields.entries.get("rope_parameters") else "rope_scaling")
    kind: RopeKind = scaling.entries.get("rope_type") or scaling.entries.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise ConfigError(f"rope type {kind!r} is not supported (supported: {', '.join(get_args(RopeKind))})")
    rotated = scaling.entries.get("partial_rotary_factor", fields.entries.get("partial_rotary_factor"))
    if rotated not in (None, 1, 1.0):
        raise ConfigError(f"partial_rotary_factor {rotated} is not supported; the Llama family rotates whole heads")
    theta = scaling.number("rope_theta", fields.number("rope_theta", _DEFAULT_THETA))
    if kind == "default":
        return RopeSettings(theta=theta)
    original = _original_positions(fields, scaling) if kind in _SCALED_FROM_ORIGINAL else 0
    return RopeSettings(
        theta=theta,
        kind=kind,
        factor=_factor(fields, scaling, original),
        original_positions=original,
        low_freq_factor=scaling.number("low_freq_factor", 1.0),
        high_freq_factor=scaling.number("high_freq_factor", 4.0),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        attention_factor=scaling.optional_number("attention_factor"),
        mscale=scaling.optional_number("mscale"),
        mscale_all_dim=scaling.optional_number("mscale_all_dim"),
        truncate=scaling.flag("truncate", True),
    )


def _original_positions(fields: ConfigFields, scaling: ConfigFields) -> int:
    key = "original_max_position_embeddings"
    return fields.size(key, scaling.size(key, fields.size("max_position_embeddings")))


def _factor(fields: ConfigFields, scaling: ConfigFields, original: int) -> float:
    if original and not scaling.has("factor"):
        return fields.size("max_position_embeddings") / original
    factor = scaling.optional_number("factor")
    if factor is None or factor <= 0:
        raise ConfigError(f"rope scaling has factor {factor!r}; expected a positive number")
    return factor
