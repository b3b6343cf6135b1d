"""The config.json of chain drafters: Eagle3 in DeepSpec's packaging, MTP in its manner."""

from dataclasses import asdict
from typing import Any

from dspark.drafters.eagle3 import Eagle3Config
from dspark.drafters.extras import DrafterExtras
from dspark.drafters.formats.deepspec_config import EAGLE3_ARCHITECTURES, EXTRAS_KEY, MTP_ARCHITECTURE, extras_json
from dspark.drafters.mtp import MTPConfig

STEP_LOSS_DECAY = 0.8
"""DeepSpec's configuration has this training-only key, so we write it; how a drafter was trained is in our extras."""


def chain_config_json(config: Eagle3Config | MTPConfig, extras: DrafterExtras, dtype: str) -> dict[str, Any]:
    """The config.json of an Eagle3 or MTP drafter. A chain has no block layout to record."""
    own = {key: value for key, value in asdict(config).items() if value is not None}
    notes = {key: value for key, value in extras_json(extras).items() if key != "layout"}
    kind = _eagle3_keys(config, extras) if isinstance(config, Eagle3Config) else {"architectures": [MTP_ARCHITECTURE]}
    return {
        "model_type": "qwen3",
        "attention_dropout": 0.0,
        "dtype": dtype,
        "hidden_act": "silu",
        "layer_types": ["full_attention"],
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "use_sliding_window": False,
        **own,
        **kind,
        EXTRAS_KEY: notes,
    }


def _eagle3_keys(config: Eagle3Config, extras: DrafterExtras) -> dict[str, Any]:
    return {
        "architectures": [EAGLE3_ARCHITECTURES[0]],
        "target_layer_ids": list(config.target_layer_ids),
        "target_model_name_or_path": extras.target_name,
        "draft_num_hidden_layers": config.num_hidden_layers,
        "step_loss_decay": STEP_LOSS_DECAY,
    }
