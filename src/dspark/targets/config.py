"""Shape of a Llama-family decoder, read from a Hugging Face config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspark.errors import ConfigError
from dspark.nn.rope import RopeSettings
from dspark.targets.config_fields import ConfigFields
from dspark.targets.rope_config import parse_rope
from dspark.types import AFTER_NORM

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` that the native decoder runs."""

_QWEN3_HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class Biases:
    """Which linear layers have a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


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
    biases: Biases = Biases()
    eos_token_ids: tuple[int, ...] = ()

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return self.model_type == "qwen3"

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> "DecoderConfig":
        """Read a config.json dictionary; ConfigError names what is missing, inconsistent or not supported."""
        reason = refusal(data)
        if reason is not None:
            raise ConfigError(reason)
        fields = ConfigFields(data)
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        layers = fields.size("num_hidden_layers")
        config = cls(
            model_type=data["model_type"],
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.size("num_key_value_heads", heads),
            head_dim=fields.size("head_dim", _QWEN3_HEAD_DIM if data["model_type"] == "qwen3" else hidden // heads),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            max_positions=fields.size("max_position_embeddings"),
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            rope=parse_rope(fields),
            windows=_windows(fields, data["model_type"], layers),
            biases=_biases(fields, data["model_type"]),
            eos_token_ids=fields.ids("eos_token_id"),
        )
        config._check()
        return config

    def check_taps(self, taps: Sequence[int]) -> None:
        """Refuse layer ids outside -1 ... num_layers - 2: transformers norms its last hidden state (contract 1)."""
        check_taps(taps, self.num_layers)

    def _check(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads: "
                "num_attention_heads must be a multiple of num_key_value_heads"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; rotary positions need an even number")


def check_taps(taps: Sequence[int], num_layers: int) -> None:
    """Refuse layer ids outside -1 ... num_layers - 2 other than `AFTER_NORM`."""
    for layer in taps:
        if layer != AFTER_NORM and not -1 <= layer < num_layers - 1:
            raise ConfigError(
                f"layer id {layer} cannot be tapped: in this target of {num_layers} layers ids run from -1 "
                f"(the embedding) to {num_layers - 2}; choose ids in that range"
            )


def refusal(data: Mapping[str, Any]) -> str | None:
    """Why the native decoder does not run the model of this config.json, None if it does.

    Raises:
        ConfigError: `layer_types` is no list of strings.
    """
    model_type = data.get("model_type")
    if model_type not in SUPPORTED:
        return f"model_type {model_type!r} is not supported natively (supported: {', '.join(SUPPORTED)})"
    quantisation = data.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, Mapping) else quantisation
        return f"quantised weights (quant_method {method!r}) are not supported; use the unquantised checkpoint"
    if data.get("hidden_act", "silu") != "silu":
        return f"hidden_act {data['hidden_act']!r} is not supported; the Llama family uses 'silu'"
    unknown = set(ConfigFields(data).names("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        return f"layer_types {sorted(unknown)} are not supported; expected full_attention or sliding_attention"
    return None


def _biases(fields: ConfigFields, model_type: str) -> Biases:
    attention = fields.flag("attention_bias")
    match model_type:
        case "llama":
            return Biases(qkv=attention, output=attention, mlp=fields.flag("mlp_bias"))
        case "qwen2":
            return Biases(qkv=True)
        case "qwen3":
            return Biases(qkv=attention, output=attention)
        case _:
            return Biases()


def _windows(fields: ConfigFields, family: str, layers: int) -> tuple[int | None, ...]:
    """Mistral slides everywhere; Qwen where `layer_types` says, or in older files from `max_window_layers` on."""
    slides = family == "mistral" or (family != "llama" and fields.flag("use_sliding_window"))
    if not slides or not fields.has("sliding_window"):
        return (None,) * layers
    window = fields.size("sliding_window")
    if family == "mistral":
        return (window,) * layers
    types = fields.names("layer_types")
    if types is None:
        first = fields.optional_number("max_window_layers")
        return tuple(window if layer >= (28 if first is None else first) else None for layer in range(layers))
    if len(types) != layers:
        raise ConfigError(f"config.json lists {len(types)} layer_types for {layers} layers; expected one per layer")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
