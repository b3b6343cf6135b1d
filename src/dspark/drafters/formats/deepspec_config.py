"""DeepSpec's config.json, both ways: a flat copy of the target's configuration with the drafter's keys on top."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.eagle3 import Eagle3Config
from dspark.drafters.extras import DrafterExtras, Layout
from dspark.drafters.formats.deepspec_tensors import AnyConfig
from dspark.drafters.formats.fields import Fields
from dspark.drafters.formats.foreign import EXPECTED, packaging
from dspark.drafters.formats.gemma4_config import GEMMA4_ARCHITECTURE, gemma4_keys, parse_gemma4
from dspark.drafters.formats.ingredients_config import INGREDIENTS, INGREDIENTS_KEY, ingredients_json, parse_ingredients
from dspark.drafters.gemma4 import Gemma4Config
from dspark.drafters.mtp import MTPConfig
from dspark.errors import ConfigError, FormatError

DSPARK_ARCHITECTURE = "Qwen3DSparkModel"
EXTENDED_ARCHITECTURE = "ExtendedDSparkModel"
"""Ours: DeepSpec's configuration plus `ingredients` that its reader does not have and must not overlook."""
EAGLE3_ARCHITECTURES = ("Qwen3Eagle3Model", "Eagle3DraftModel")
MTP_ARCHITECTURE = "Qwen3MTPModel"
"""Ours: DeepSpec has no MTP, and DeepSeek's own module comes inside its target's checkpoint."""
EXTRAS_KEY = "dspark"
NUM_ANCHORS = 512
"""DeepSpec's constructor demands this training-only key, so we write it; reading never needs it."""


def parse_config(fields: Fields) -> AnyConfig:
    """The drafter that a config.json describes. Raises FormatError, naming the packaging when it is a foreign one."""
    architectures = fields.entries.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    try:
        if architecture == DSPARK_ARCHITECTURE:
            _refuse_windows(fields)
            fields.require(INGREDIENTS_KEY, {}, {})
            return _parse_dspark(fields)
        if architecture == EXTENDED_ARCHITECTURE:
            return replace(_parse_dspark(fields), **parse_ingredients(fields))
        if architecture == GEMMA4_ARCHITECTURE:
            return parse_gemma4(fields, drafter_fields(fields))
        if architecture in EAGLE3_ARCHITECTURES:
            return _parse_eagle3(fields)
        if architecture == MTP_ARCHITECTURE:
            return _parse_mtp(fields)
    except ConfigError as error:
        raise FormatError(f"{fields.source}: {error}") from error
    raise FormatError(f"{fields.source} describes {packaging(fields.entries)}, which cannot be read here; {EXPECTED}")


def parse_extras(fields: Fields) -> DrafterExtras:
    """Our own `dspark` key; everything unrecorded where it is absent."""
    extras = fields.object(EXTRAS_KEY)
    layout = extras.text("layout", "")
    if layout and layout not in set(Layout):
        raise FormatError(f"{fields.source}: layout is {layout!r}, expected one of {[str(x) for x in Layout]}")
    thinking = extras.entries.get("thinking")
    target = extras.object("target")
    return DrafterExtras(
        name=extras.text("name", ""),
        layout=Layout(layout) if layout else None,
        target_name=target.text("name", ""),
        target_hash=target.text("weights_hash", ""),
        template_hash=extras.text("template_hash", ""),
        thinking=None if thinking is None else extras.flag("thinking", False),
        training=dict(extras.object("training").entries),
    )


def config_json(config: DrafterConfig, extras: DrafterExtras, dtype: str) -> dict[str, Any]:
    """The config.json of a DSpark or DFlash drafter, complete for DeepSpec's own reader."""
    data: dict[str, Any] = {
        "architectures": [DSPARK_ARCHITECTURE if config.is_deepspec else EXTENDED_ARCHITECTURE],
        "model_type": "qwen3",
        "attention_dropout": 0.0,
        "dtype": dtype,
        "hidden_act": "silu",
        "num_anchors": NUM_ANCHORS,
        "tie_word_embeddings": False,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        **_plain_keys(config),
        **ingredients_json(config),
        EXTRAS_KEY: extras_json(extras),
    }
    return data | gemma4_keys(config) if isinstance(config, Gemma4Config) else data


def _plain_keys(config: DrafterConfig) -> dict[str, Any]:
    """Keys that carry the field of the same name, without those that DeepSpec leaves out when a head is off."""
    data = asdict(config) | {"target_layer_ids": list(config.target_layer_ids)}
    absent = set(INGREDIENTS) | {"sliding_window"}
    absent |= set() if config.markov_rank else {"markov_head_type"}
    absent |= set() if config.enable_confidence_head else {"confidence_head_with_markov"}
    absent |= set() if config.draft_vocab_size else {"draft_vocab_size"}
    return {key: value for key, value in data.items() if key not in absent}


def extras_json(extras: DrafterExtras) -> Mapping[str, Any]:
    """Our own `dspark` key, without what is not recorded."""
    data = {
        "name": extras.name,
        "layout": str(extras.layout or Layout.ANCHOR_FIRST),
        "target": {"name": extras.target_name, "weights_hash": extras.target_hash},
        "template_hash": extras.template_hash,
        "thinking": extras.thinking,
        "training": dict(extras.training),
    }
    return {key: value for key, value in data.items() if value not in ("", None, {})}


def _parse_dspark(fields: Fields) -> DrafterConfig:
    _refuse_unsupported(fields)
    return DrafterConfig(
        **drafter_fields(fields),
        num_key_value_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        rope_theta=_rope_theta(fields),
    )


def _parse_mtp(fields: Fields) -> MTPConfig:
    _refuse_unsupported(fields)
    _refuse_windows(fields)
    return MTPConfig(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        num_attention_heads=fields.integer("num_attention_heads"),
        num_key_value_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        vocab_size=fields.integer("vocab_size"),
        num_target_layers=fields.integer("num_target_layers"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
        attention_bias=fields.flag("attention_bias", False),
        draft_vocab_size=_draft_vocab_size(fields),
    )


def _draft_vocab_size(fields: Fields) -> int | None:
    return None if fields.entries.get("draft_vocab_size") is None else fields.integer("draft_vocab_size")


def drafter_fields(fields: Fields) -> dict[str, Any]:
    """What config.json says alike for drafters of every family, by the names of `DrafterConfig`."""
    rank = fields.integer("markov_rank", 0)
    return {
        "hidden_size": fields.integer("hidden_size"),
        "intermediate_size": fields.integer("intermediate_size"),
        "num_hidden_layers": fields.integer("num_hidden_layers"),
        "num_attention_heads": fields.integer("num_attention_heads"),
        "vocab_size": fields.integer("vocab_size"),
        "num_target_layers": fields.integer("num_target_layers"),
        "target_layer_ids": fields.integers("target_layer_ids"),
        "mask_token_id": fields.integer("mask_token_id"),
        "block_size": fields.integer("block_size"),
        "markov_rank": rank,
        "markov_head_type": _head_kind(fields) if rank else HeadKind.VANILLA,
        "enable_confidence_head": fields.flag("enable_confidence_head", False),
        "confidence_head_with_markov": fields.flag("confidence_head_with_markov", True),
        "draft_vocab_size": _draft_vocab_size(fields),
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "attention_bias": fields.flag("attention_bias", False),
        "max_position_embeddings": fields.integer("max_position_embeddings", 32_768),
    }


def _parse_eagle3(fields: Fields) -> Eagle3Config:
    _refuse_unsupported(fields)
    _refuse_windows(fields)
    return Eagle3Config(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        num_attention_heads=fields.integer("num_attention_heads"),
        num_key_value_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        vocab_size=fields.integer("vocab_size"),
        num_target_layers=fields.integer("num_target_layers"),
        target_layer_ids=fields.integers("target_layer_ids"),
        ttt_length=fields.integer("ttt_length"),
        draft_vocab_size=_draft_vocab_size(fields),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
        attention_bias=fields.flag("attention_bias", False),
    )


def _head_kind(fields: Fields) -> HeadKind:
    kind = fields.text("markov_head_type", "vanilla")
    if kind not in set(HeadKind):
        raise FormatError(
            f"{fields.source}: markov_head_type is {kind!r}, expected one of {[str(k) for k in HeadKind]}"
        )
    return HeadKind(kind)


def _refuse_unsupported(fields: Fields) -> None:
    fields.require("hidden_act", "silu", "silu")


def _refuse_windows(fields: Fields) -> None:
    fields.require("use_sliding_window", False, False)
    types = fields.entries.get("layer_types") or []
    other = [kind for kind in types if kind != "full_attention"] if isinstance(types, list) else types
    if other:
        raise FormatError(f"{fields.source}: layer_types has {other!r}, this reader knows only full_attention")


def passed_over(fields: Fields) -> tuple[str, ...]:
    """Remarks on recorded settings that are ignored on purpose."""
    rope = fields.object("rope_parameters")
    rope = rope.object("full_attention") if "full_attention" in rope.entries else rope
    rotated = rope.entries.get("partial_rotary_factor", 1)
    if fields.entries.get("partial_rotary_factor", rotated) in (1, None):
        return ()
    return ("partial_rotary_factor is the target's; DeepSpec's drafters rotate every dimension, and so do we",)


def _rope_theta(fields: Fields) -> float:
    """theta of an unscaled rotary embedding, as transformers 5 (`rope_parameters`) or 4 (`rope_theta`) writes it."""
    key = "rope_parameters" if fields.entries.get("rope_parameters") else "rope_scaling"
    rope = fields.object(key)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind != "default":
        raise FormatError(f"{fields.source}: rotary scaling {kind!r} is not supported in drafters, only 'default'")
    return rope.number("rope_theta", fields.number("rope_theta", 10_000.0))


def config_path(directory: Path) -> Path:
    """Where a drafter directory keeps its configuration."""
    return directory / "config.json"
