"""Weights of a Hugging Face directory, every name and shape accounted for."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dspark.errors import FormatError
from dspark.targets.config import DecoderConfig

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NAMED = 5

IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""A buffer of old checkpoints that follows from the configuration."""


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a checkpoint of this configuration holds, by Hugging Face name."""
    d, h = config.hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.norm.weight": (d,),
        "model.embed_tokens.weight": (config.vocab_size, d),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (d,), "post_attention_layernorm.weight": (d,)}
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (h,), "self_attn.k_norm.weight": (h,)}
    heads, kv_heads, f, biases = config.num_heads * h, config.num_kv_heads * h, config.intermediate_size, config.biases
    for name, rows, columns, bias in (
        ("self_attn.q_proj", heads, d, biases.qkv),
        ("self_attn.k_proj", kv_heads, d, biases.qkv),
        ("self_attn.v_proj", kv_heads, d, biases.qkv),
        ("self_attn.o_proj", d, heads, biases.output),
        ("mlp.gate_proj", f, d, biases.mlp),
        ("mlp.up_proj", f, d, biases.mlp),
        ("mlp.down_proj", d, f, biases.mlp),
    ):
        layer[f"{name}.weight"] = (rows, columns)
        if bias:
            layer[f"{name}.bias"] = (rows,)
    return shapes | {f"model.layers.{i}.{name}": s for i in range(config.num_layers) for name, s in layer.items()}


def checked_weights(weights: Mapping[str, Tensor], config: DecoderConfig, source: str) -> dict[str, Tensor]:
    """`weights` without what the configuration implies; FormatError names every tensor missing, unknown or misshapen.

    A tied checkpoint may repeat its embedding as `lm_head.weight`; any other head there is an error.
    """
    expected = expected_shapes(config)
    found = {name: tensor for name, tensor in weights.items() if not name.endswith(IGNORED_SUFFIX)}
    if config.tie_word_embeddings and "lm_head.weight" in found:
        _check_tied_head(found.pop("lm_head.weight"), found.get("model.embed_tokens.weight"), source)
    _refuse_names(expected.keys() - found.keys(), f"{source} lacks tensors that its config.json implies")
    _refuse_names(found.keys() - expected.keys(), f"{source} holds tensors that its config.json does not imply")
    for name, shape in expected.items():
        tensor = found[name]
        if tuple(tensor.shape) != shape:
            raise FormatError(f"{source}: {name} has shape {tuple(tensor.shape)}, its config.json implies {shape}")
        if tensor.dtype not in _FLOATS:
            raise FormatError(f"{source}: {name} is {tensor.dtype}; expected float32, float16 or bfloat16 weights")
    return found


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards that its index lists, memory-mapped."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(directory):
        try:
            weights |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{path} is not a readable safetensors file ({error}); download it again") from error
    if (directory / _INDEX).is_file() and not (directory / _SINGLE).is_file():
        listed = _weight_map(directory / _INDEX).keys()
        _refuse_names(listed ^ weights.keys(), f"{directory / _INDEX} and the shards beside it disagree")
    return weights


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in name order; FormatError if there are none or one is missing."""
    if (directory / _SINGLE).is_file():
        return [directory / _SINGLE]
    if not (directory / _INDEX).is_file():
        raise FormatError(
            f"{directory} holds neither {_SINGLE} nor {_INDEX}; only safetensors are read, convert other formats first"
        )
    names = sorted(set(_weight_map(directory / _INDEX).values()))
    outside = [name for name in names if Path(name).name != name]
    _refuse_names(outside, f"{directory / _INDEX} points outside its folder")
    absent = [name for name in names if not (directory / name).is_file()]
    _refuse_names(absent, f"{directory} lacks shards that its index lists")
    return [directory / name for name in names]


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{index} is not a safetensors index ({error!r}); download it again") from error
    return weight_map


def _check_tied_head(head: Tensor, embedding: Tensor | None, source: str) -> None:
    if embedding is not None and not torch.equal(head, embedding):
        raise FormatError(
            f"{source}: config.json ties lm_head.weight to the embedding, but the file holds a different one; "
            "set tie_word_embeddings to false if the head is meant to be used"
        )


def _refuse_names(names: Iterable[str], problem: str) -> None:
    listed = sorted(names)
    if listed:
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        raise FormatError(f"{problem}: {', '.join(listed[:_NAMED])}{more}")
