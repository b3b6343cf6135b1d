"""Shape of a Llama-family decoder, read from a Hugging Face config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.errors import ConfigError
from dspark.nn.rope import RopeSettings


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything the native decoder needs. `windows` holds one sliding window (or None) per layer."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    tie_word_embeddings: bool
    rope: RopeSettings
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> "DecoderConfig":
        """Read a config.json dictionary."""
        heads = int(data["num_attention_heads"])
        layers = int(data["num_hidden_layers"])
        eos = data.get("eos_token_id")
        return cls(
            model_type=data["model_type"],
            vocab_size=data["vocab_size"],
            hidden_size=data["hidden_size"],
            intermediate_size=data["intermediate_size"],
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=data.get("num_key_value_heads") or heads,
            head_dim=data.get("head_dim") or data["hidden_size"] // heads,
            rms_norm_eps=data["rms_norm_eps"],
            max_positions=data["max_position_embeddings"],
            tie_word_embeddings=data.get("tie_word_embeddings", False),
            rope=RopeSettings(theta=data.get("rope_theta", 10000.0)),
            windows=(None,) * layers,
            eos_token_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        )

    def check_taps(self, taps: tuple[int, ...]) -> None:
        """Refuse layer ids outside -1 ... num_layers - 2."""
        for layer in taps:
            if not -1 <= layer < self.num_layers - 1:
                raise ConfigError(
                    f"layer id {layer} cannot be tapped: ids run from -1 (embedding) to {self.num_layers - 2} "
                    f"in this target of {self.num_layers} layers; choose ids in that range"
                )
