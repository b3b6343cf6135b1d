"""Reads Llama-family GGUF files: their configuration, and their weights under Hugging Face names."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspark.errors import FormatError
from dspark.nn.rope import RopeSettings, Rotary
from dspark.targets.gguf_layout import TensorEntry, read_layout

SUPPORTED = ("llama", "qwen2", "qwen3")
"""Values of `general.architecture` that are understood; Mistral files say llama."""

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ROPE_FACTORS = "rope_freqs.weight"


class GGUFFile:
    """An open GGUF file; tensors are dequantised one at a time.

    Raises:
        FormatError: unreadable, truncated, or of an architecture other than `SUPPORTED`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise FormatError(f"{path} does not exist; expected a GGUF file")
        try:
            self._data = np.memmap(path, np.uint8, "r")
            layout = read_layout(self._data.data, tensor_bytes)
        except (OSError, ValueError) as error:
            raise FormatError(f"{path} is not a readable GGUF file ({error}); download it again") from error
        self._fields = layout.fields
        self._tensors = {entry.name: entry for entry in layout.tensors}
        self.architecture: str = self.field("general.architecture", "")
        if self.architecture not in SUPPORTED:
            raise FormatError(
                f"{path}: architecture {self.architecture!r} is not supported ({', '.join(SUPPORTED)} are)"
            )

    def field(self, key: str, default: Any = None) -> Any:
        """A metadata value, `default` if the file lacks it."""
        return self._fields.get(key, default)

    def required(self, key: str) -> Any:
        """A metadata value; FormatError if the file lacks it."""
        value = self.field(key)
        if value is None:
            raise FormatError(f"{self.path} lacks the metadata {key!r}; convert the model to GGUF again")
        return value

    def config(self) -> dict[str, Any]:
        """The model's shape as a Hugging Face config.json dictionary."""
        arch = self.architecture
        heads, width = self.required(f"{arch}.attention.head_count"), self.required(f"{arch}.embedding_length")
        head_dim = self.field(f"{arch}.attention.key_length", width // heads)
        self._refuse_partial_rotation(head_dim)
        positions = self.required(f"{arch}.context_length")
        return {
            "architectures": [f"{arch.capitalize()}ForCausalLM"],
            "model_type": arch,
            "vocab_size": self._entry("token_embd.weight").shape[-1],
            "hidden_size": width,
            "intermediate_size": self.required(f"{arch}.feed_forward_length"),
            "num_hidden_layers": self.required(f"{arch}.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._kv_heads(),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": _short(self.required(f"{arch}.attention.layer_norm_rms_epsilon")),
            "max_position_embeddings": positions,
            "rope_parameters": self._rope(head_dim, positions),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "attention_bias": arch != "qwen2" and "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self._tensors,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, float32 tensor) of every tensor, Q and K rows in Hugging Face order."""
        heads, kv_heads = self.required(f"{self.architecture}.attention.head_count"), self._kv_heads()
        for entry in self._tensors.values():
            if entry.name == _ROPE_FACTORS:
                continue
            name, values = hugging_face_name(entry.name), self._dequantised(entry)
            if self.architecture == "llama" and ".self_attn.q_proj." in name:
                values = undo_permutation(values, heads)
            elif self.architecture == "llama" and ".self_attn.k_proj." in name:
                values = undo_permutation(values, kv_heads)
            yield name, values

    def _stored(self, entry: TensorEntry) -> np.ndarray:
        return self._data[entry.start : entry.start + tensor_bytes(entry)]

    def _dequantised(self, entry: TensorEntry) -> Tensor:
        """Float32 values, slowest axis first."""
        from gguf import GGMLQuantizationType, dequantize  # takes a second to import

        shape = entry.shape[::-1]
        rows = self._stored(entry).reshape(*shape[:-1], -1)
        values = dequantize(np.asarray(rows), GGMLQuantizationType(entry.type))
        return torch.from_numpy(np.array(values, dtype=np.float32)).view(shape)

    def _kv_heads(self) -> int:
        arch = self.architecture
        return int(self.field(f"{arch}.attention.head_count_kv", self.required(f"{arch}.attention.head_count")))

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._tensors:
            raise FormatError(f"{self.path} lacks the tensor {name}; convert the model to GGUF again")
        return self._tensors[name]

    def _refuse_partial_rotation(self, head_dim: int) -> None:
        rotated = self.field(f"{self.architecture}.rope.dimension_count", head_dim)
        if rotated != head_dim:
            raise FormatError(f"{self.path} rotates {rotated} of {head_dim} head dimensions; expected all of them")

    def _rope(self, head_dim: int, positions: int) -> dict[str, Any]:
        """The file's rotary settings as a `rope_parameters` dictionary."""
        arch = self.architecture
        theta = _short(self.field(f"{arch}.rope.freq_base", 10000.0))
        if _ROPE_FACTORS in self._tensors:
            factors = self._dequantised(self._tensors[_ROPE_FACTORS]).numpy()
            return _llama3_parameters(theta, head_dim, factors, self.path)
        kind = self.field(f"{arch}.rope.scaling.type", "none")
        if kind == "none":
            return {"rope_type": "default", "rope_theta": theta}
        return {
            "rope_type": kind,
            "rope_theta": theta,
            "factor": _short(self.required(f"{arch}.rope.scaling.factor")),
            "original_max_position_embeddings": self.field(f"{arch}.rope.scaling.original_context_length", positions),
        }


def tensor_bytes(entry: TensorEntry) -> int:
    """How many bytes a tensor takes in the file; ValueError for types that the `gguf` package does not know."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    values, size = GGML_QUANT_SIZES[GGMLQuantizationType(entry.type)]
    return math.prod(entry.shape) // values * size


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; FormatError for names without counterpart."""
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{suffix}"
    block, _, part = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and block.isdigit() and part in _LAYER_NAMES:
        return f"model.layers.{block}.{_LAYER_NAMES[part]}.{suffix}"
    raise FormatError(f"GGUF tensor {name} has no counterpart in a Llama-family decoder")


def undo_permutation(rows: Tensor, heads: int) -> Tensor:
    """Rows (weight or bias) in llama.cpp's order [heads, h / 2, 2] -> [heads, 2, h / 2], the rotate-half order."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _llama3_parameters(theta: float, head_dim: int, factors: np.ndarray, path: Path) -> dict[str, Any]:
    """Llama 3.1's parameters, if they explain the frequency divisors [h / 2] that the file stores instead of them."""
    published = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    factor = _short(factors.max())
    settings = RopeSettings(theta, "llama3", factor, original_positions=8192)
    plain, scaled = Rotary.plain(head_dim, theta), Rotary.scaled(head_dim, settings)
    explained = (plain.inverse_frequencies / scaled.inverse_frequencies).numpy()
    if factors.shape != explained.shape or not np.allclose(explained, factors, rtol=1e-3):
        raise FormatError(f"{path}: {_ROPE_FACTORS} is no llama3 scaling; load the Hugging Face directory instead")
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor, **published}


def _short(value: float) -> float:
    """The shortest decimal that has this float32 value (GGUF stores 1e-5 as 9.99999974e-06)."""
    return float(str(np.float32(value)))
