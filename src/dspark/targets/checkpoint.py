"""A model as read from disk, before it becomes a target: Hugging Face directories and GGUF files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.errors import FormatError
from dspark.nn.device import CPU
from dspark.nn.kernel_choice import KernelName, choose_kernel
from dspark.targets.config import DecoderConfig
from dspark.targets.gguf_reader import GGUFFile
from dspark.targets.json_file import read_json
from dspark.targets.native import NativeTarget
from dspark.targets.tokenizer import read_chat_template
from dspark.targets.weights import checked_weights, read_weights, weight_files
from dspark.targets.weights_hash import remembered_hash, weights_hash
from dspark.types import TargetInfo

GGUF_IDENTITY = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`config` is a config.json dictionary, `weights` go by Hugging Face names, `source` is for messages."""

    name: str
    source: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    weights_hash: str
    chat_template: str | None = None


def read_directory(directory: Path, name: str | None = None, known_hash: str | None = None) -> Checkpoint:
    """The checkpoint in a Hugging Face directory, memory-mapped; `known_hash` saves computing its hash.

    Raises:
        FormatError: a file is missing or unreadable.
    """
    config = read_config(directory)
    weights = read_weights(directory)
    identity = known_hash or remembered_hash(weight_files(directory), lambda: weights_hash(weights))
    return Checkpoint(
        name or directory.resolve().name, str(directory), config, weights, identity, read_chat_template(directory)
    )


def read_gguf(path: Path, dtype: torch.dtype) -> Checkpoint:
    """The checkpoint in a GGUF file, dequantised to `dtype`; FormatError if it is unreadable or not supported.

    Whatever `dtype` is, its identity is that of the bfloat16 directory which the file converts to.
    """
    file = GGUFFile(path)
    config = file.config()
    weights = {name: values.to(dtype) for name, values in file.weights()}
    identity = remembered_hash([path], lambda: weights_hash(weights, GGUF_IDENTITY))
    return Checkpoint(path.stem, str(path), config, weights, identity, file.field("tokenizer.chat_template"))


def read_config(directory: Path) -> dict[str, Any]:
    """config.json, with the end tokens of generation_config.json if it names any."""
    if not (directory / "config.json").is_file():
        raise FormatError(f"{directory} holds no config.json; expected a Hugging Face model directory")
    config = read_json(directory / "config.json")
    ends = read_json(directory / "generation_config.json").get("eos_token_id")
    return config if ends is None else config | {"eos_token_id": ends}


def build_target(
    checkpoint: Checkpoint, dtype: torch.dtype, kernel: KernelName = "auto", device: torch.device = CPU
) -> NativeTarget:
    """The native target of `checkpoint` on `device`, its weights rounded to `dtype`.

    Raises:
        ConfigError: a model, feature or kernel that cannot run here.
        FormatError: tensors that do not match the configuration.
    """
    config = DecoderConfig.parse(checkpoint.config)
    chosen = choose_kernel(kernel, dtype, device=device).kernel
    weights = checked_weights(checkpoint.weights, config, checkpoint.source)
    if dtype is not torch.float32 or device != CPU:
        weights = {name: tensor.to(device, dtype) for name, tensor in weights.items()}
    return NativeTarget(config, target_info(checkpoint, config), weights, chosen, dtype)


def target_info(checkpoint: Checkpoint, config: DecoderConfig) -> TargetInfo:
    """What others must know of the target that `checkpoint` becomes."""
    return TargetInfo(
        name=checkpoint.name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        max_positions=config.max_positions,
        eos_token_ids=config.eos_token_ids,
        weights_hash=checkpoint.weights_hash,
        template_hash=template_hash(checkpoint.chat_template),
    )


def template_hash(template: str | None) -> str:
    """First 16 hex digits of a chat template's sha256, as artefacts record it; empty without a template."""
    return "" if template is None else hashlib.sha256(template.encode()).hexdigest()[:16]
