"""DeepSpec's config.json of a Gemma4 drafter, where it differs: a copy of the target's text configuration.

Drafter layers are shaped as the target's full-attention layers, whose sizes have keys of their own there.
"""

from collections.abc import Mapping
from typing import Any

from dspark.drafters.formats.fields import Fields
from dspark.drafters.gemma4 import Gemma4Config
from dspark.errors import FormatError

GEMMA4_ARCHITECTURE = "Gemma4DSparkModel"
ACTIVATION = "gelu_pytorch_tanh"


def parse_gemma4(fields: Fields, common: Mapping[str, Any]) -> Gemma4Config:
    """The drafter, its `common` keys already read. Raises FormatError for what no drafter layer here computes."""
    fields.require("hidden_activation", ACTIVATION, ACTIVATION)
    fields.require("enable_moe_block", False, False)
    if fields.integer("hidden_size_per_layer_input", 0):
        raise FormatError(f"{fields.source}: drafters with per-layer inputs are not supported")
    shared = fields.flag("attention_k_eq_v", False)
    heads = fields.integer("num_key_value_heads")
    # Null where the full-attention layers have as many key heads as the others.
    own = fields.entries.get("num_global_key_value_heads")
    cap = fields.entries.get("final_logit_softcapping")
    return Gemma4Config(
        **common,
        num_key_value_heads=heads if own is None or not shared else fields.integer("num_global_key_value_heads"),
        head_dim=fields.integer("global_head_dim"),
        rope_theta=fields.object("rope_parameters").object("full_attention").number("rope_theta", 1_000_000.0),
        attention_k_eq_v=shared,
        final_logit_softcapping=None if cap is None else fields.number("final_logit_softcapping"),
    )


def gemma4_keys(config: Gemma4Config) -> dict[str, Any]:
    """Keys that a Gemma4 drafter has instead of, or beside, a Qwen3 drafter's."""
    return {
        "architectures": [GEMMA4_ARCHITECTURE],
        "model_type": "gemma4_text",
        "target_model_type": "gemma4",
        "target_text_model_type": "gemma4_text",
        "hidden_activation": ACTIVATION,
        "hidden_act": ACTIVATION,
        "global_head_dim": config.head_dim,
        "num_global_key_value_heads": config.num_key_value_heads if config.attention_k_eq_v else None,
        "rope_parameters": {"full_attention": {"rope_theta": config.rope_theta, "rope_type": "default"}},
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
    }
