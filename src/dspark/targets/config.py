"""Shape of a Llama-family decoder, read from a Hugging Face config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspark.errors import ConfigError
from dspark.nn.rope import RopeSettings
from dspark.targets.rope_config import parse_rope

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
        hidden, heads = _size(data, "hidden_size"), _size(data, "num_attention_heads")
        layers = _size(data, "num_hidden_layers")
        config = cls(
            model_type=data["model_type"],
            vocab_size=_size(data, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(data, "intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=data.get("num_key_value_heads") or heads,
            head_dim=data.get("head_dim") or (_QWEN3_HEAD_DIM if data["model_type"] == "qwen3" else hidden // heads),
            rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
            max_positions=_size(data, "max_position_embeddings"),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            rope=parse_rope(data),
            windows=_windows(data, layers),
            biases=_biases(data),
            eos_token_ids=token_ids(data.get("eos_token_id")),
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
    """Refuse layer ids outside -1 ... num_layers - 2."""
    for layer in taps:
        if not -1 <= layer < num_layers - 1:
            raise ConfigError(
                f"layer id {layer} cannot be tapped: in this target of {num_layers} layers ids run from -1 "
                f"(the embedding) to {num_layers - 2}; choose ids in that range"
            )


def refusal(data: Mapping[str, Any]) -> str | None:
    """Why the native decoder does not run the model of this config.json, None if it does."""
    model_type = data.get("model_type")
    if model_type not in SUPPORTED:
        return f"model_type {model_type!r} is not supported natively (supported: {', '.join(SUPPORTED)})"
    if data.get("quantization_config"):
        method = data["quantization_config"].get("quant_method", "unknown")
        return f"quantised weights (quant_method {method!r}) are not supported; use the unquantised checkpoint"
    if data.get("hidden_act", "silu") != "silu":
        return f"hidden_act {data['hidden_act']!r} is not supported; the Llama family uses 'silu'"
    unknown = set(data.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        return f"layer_types {sorted(unknown)} are not supported; expected full_attention or sliding_attention"
    return None


def token_ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    """The ids of a config field that holds none, one or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _size(data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ConfigError(f"config.json has {key} = {value!r}; expected a positive integer")
    return value


def _biases(data: Mapping[str, Any]) -> Biases:
    attention = bool(data.get("attention_bias", False))
    match data["model_type"]:
        case "llama":
            return Biases(qkv=attention, output=attention, mlp=bool(data.get("mlp_bias", False)))
        case "qwen2":
            return Biases(qkv=True)
        case "qwen3":
            return Biases(qkv=attention, output=attention)
        case _:
            return Biases()


def _windows(data: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Mistral slides everywhere; Qwen where `layer_types` says, or in older files from `max_window_layers` on."""
    window = data.get("sliding_window")
    family = data["model_type"]
    if window is None or family == "llama" or (family != "mistral" and not data.get("use_sliding_window", False)):
        return (None,) * layers
    if family == "mistral":
        return (window,) * layers
    types = data.get("layer_types")
    if types is None:
        first = data.get("max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(layers))
    if len(types) != layers:
        raise ConfigError(f"config.json lists {len(types)} layer_types for {layers} layers; expected one per layer")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
