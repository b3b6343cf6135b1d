"""Sizes of a decoder that transformers runs, as drafters need them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.nn.rope import RopeSettings

FULL = "full_attention"


@dataclass(frozen=True, slots=True)
class GemmaTraits:
    """What a drafter for a Gemma4 target takes over beside sizes: shared keys and values, and the logits' soft cap."""

    attention_k_eq_v: bool = False
    final_logit_softcapping: float | None = None


@dataclass(frozen=True, slots=True)
class AdaptedShape:
    """Sizes of the layers that see the whole context, where layers differ; `gemma` is set for Gemma4 alone."""

    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeSettings
    gemma: GemmaTraits | None = None


def adapted_shape(config: Any) -> AdaptedShape:
    """The shape that a transformers text configuration describes.

    Where a family has no such number (GPT-2's MLP width, rotary base), the usual one stands in: drafters of such
    targets start at random anyway.
    """
    heads, width = config.num_attention_heads, config.hidden_size
    full = _of_full_layers(config)
    return AdaptedShape(
        intermediate_size=_number(config, "intermediate_size", "n_inner") or 4 * width,
        num_heads=heads,
        num_kv_heads=full.get("num_key_value_heads") or _number(config, "num_key_value_heads") or heads,
        head_dim=full.get("head_dim") or _number(config, "head_dim") or width // heads,
        rms_norm_eps=getattr(config, "rms_norm_eps", None) or getattr(config, "layer_norm_epsilon", None) or 1e-6,
        rope=RopeSettings(theta=_rope_theta(config)),
        gemma=_gemma_traits(config),
    )


def _of_full_layers(config: Any) -> Mapping[str, int]:
    """Sizes that full-attention layers have of their own: Gemma4 gives them wider heads."""
    per_layer = getattr(config, "per_layer_config", None)
    types = getattr(config, "layer_types", None) or []
    if per_layer is None or FULL not in types:
        return {}
    layer = per_layer[types.index(FULL)]
    return {"head_dim": layer.head_dim, "num_key_value_heads": layer.num_key_value_heads}


def _number(config: Any, *names: str) -> int | None:
    """The first of `names` that is set; of a list with one number per layer, the last."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, list | tuple):
            value = value[-1]
        if value is not None:
            return int(value)
    return None


def _rope_theta(config: Any) -> float:
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get(FULL, rope) or {}
    return float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0)


def _gemma_traits(config: Any) -> GemmaTraits | None:
    """Raises ConfigError for variants that no drafter has: mixtures of experts and per-layer inputs."""
    if config.model_type not in ("gemma4_text", "gemma4_unified_text"):
        return None
    return GemmaTraits(bool(getattr(config, "attention_k_eq_v", False)), config.final_logit_softcapping)
