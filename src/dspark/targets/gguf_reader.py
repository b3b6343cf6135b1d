"""Reads Llama-family GGUF files: configuration, weights under Hugging Face names, tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from dspark.errors import FormatError

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
_CONTROL, _USER_DEFINED = 3, 4


class GGUFFile:
    """An open GGUF file; tensors are dequantised one at a time."""

    def __init__(self, path: Path) -> None:
        import gguf

        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise FormatError(f"{path} is not a readable GGUF file ({error}); download it again") from error
        self.architecture: str = self.field("general.architecture")

    def field(self, key: str, default: Any = None) -> Any:
        """A metadata value as a Python object, `default` if the file lacks it."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def config(self) -> dict[str, Any]:
        """The model's shape as a Hugging Face config.json dictionary."""
        arch = self.architecture
        heads = self.field(f"{arch}.attention.head_count")
        width = self.field(f"{arch}.embedding_length")
        names = {tensor.name for tensor in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": arch,
            "vocab_size": len(self.field("tokenizer.ggml.tokens")),
            "hidden_size": width,
            "intermediate_size": self.field(f"{arch}.feed_forward_length"),
            "num_hidden_layers": self.field(f"{arch}.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.field(f"{arch}.attention.head_count_kv", heads),
            "head_dim": self.field(f"{arch}.attention.key_length", width // heads),
            "hidden_act": "silu",
            "rms_norm_eps": _short(self.field(f"{arch}.attention.layer_norm_rms_epsilon")),
            "max_position_embeddings": self.field(f"{arch}.context_length"),
            "rope_theta": _short(self.field(f"{arch}.rope.freq_base", 10000.0)),
            "tie_word_embeddings": "output.weight" not in names,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            "dtype": "bfloat16",
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, float32 tensor) of every tensor, Q and K rows in Hugging Face order."""
        import gguf

        heads = self.field(f"{self.architecture}.attention.head_count")
        kv_heads = self.field(f"{self.architecture}.attention.head_count_kv", heads)
        for tensor in self._reader.tensors:
            name = hugging_face_name(tensor.name)
            values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
            if self.architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                values = undo_permutation(values, heads if "q_proj" in name else kv_heads)
            yield name, values

    def tokenizer(self) -> Tokenizer:
        """The byte-level BPE tokenizer that the file describes."""
        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        tokenizer.decoder = decoders.ByteLevel()
        for token, kind in zip(tokens, self.field("tokenizer.ggml.token_type"), strict=True):
            if kind in (_CONTROL, _USER_DEFINED):
                tokenizer.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])
        return tokenizer


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; FormatError for names without counterpart."""
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{suffix}"
    block, _, part = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and block.isdigit() and part in _LAYER_NAMES:
        return f"model.layers.{block}.{_LAYER_NAMES[part]}.{suffix}"
    raise FormatError(f"GGUF tensor {name} has no counterpart in a Llama-family decoder")


def undo_permutation(weight: Tensor, heads: int) -> Tensor:
    """Rows [heads, h / 2, 2] as llama.cpp interleaves them -> [heads, 2, h / 2], the rotate-half order."""
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _short(value: float) -> float:
    """The shortest decimal that has this float32 value (GGUF stores 1e-5 as 9.99999974e-06)."""
    return float(str(np.float32(value)))
