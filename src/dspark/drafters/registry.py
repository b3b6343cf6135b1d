"""Opening a drafter for a target, and saving one: the front door of this folder."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dspark.drafters.backbone import DFlash
from dspark.drafters.config import DrafterShape
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.extras import DrafterExtras
from dspark.drafters.formats.deepspec import Checkpoint, build_any, open_checkpoint, write_dspark
from dspark.drafters.formats.deepspec_tensors import EMBEDDING, HEAD
from dspark.drafters.formats.weight_files import WeightFiles
from dspark.drafters.packing import pack_drafter
from dspark.errors import CompatibilityError, ConfigError
from dspark.nn.device import CPU
from dspark.nn.kernel_choice import KernelName, choose_kernel
from dspark.nn.paged_attention import choose_attention
from dspark.types import TargetInfo

SAMPLED_ROWS = 256
FOREIGN = 0.25
"""Relative difference of embeddings beyond which they belong to another model; 4-bit quantisation stays below 0.1."""


class SharingTarget(Protocol):
    """A target that lends a drafter its embedding and LM head, each [V, d]."""

    @property
    def info(self) -> TargetInfo: ...
    @property
    def embedding_weight(self) -> Tensor: ...
    @property
    def lm_head_weight(self) -> Tensor: ...


def load_drafter(path: Path | str, target: SharingTarget, kernel: KernelName | None = "auto") -> DrafterModule:
    """The drafter in directory `path`, of whatever kind, sharing `target`'s embedding and head, on their device.

    Its matrices are packed for decoding with `kernel`, by default the one that suits weights of the target's dtype on
    this processor. With None they stay plain float32 parameters: slow, but they can be trained and saved.

    Raises:
        FormatError: nothing is there, or it cannot be read.
        CompatibilityError: the drafter belongs to another target.
        ConfigError: a kernel that cannot run here.
    """
    checkpoint = open_checkpoint(Path(path))
    check_target(checkpoint, target)
    embedding, head = target.embedding_weight, target.lm_head_weight
    chosen = None if kernel is None else choose_kernel(kernel, embedding.dtype, device=embedding.device).kernel
    dtype = torch.float32 if chosen is None else chosen.activation_dtype
    drafter = build_any(checkpoint, embedding, head, dtype).to(embedding.device).eval().requires_grad_(False)
    if isinstance(drafter, DFlash) and embedding.device != CPU:
        drafter.attention = choose_attention(embedding.device, dtype, drafter.config.head_dim)
    return drafter if chosen is None else pack_drafter(drafter, chosen)


def save_drafter(
    drafter: DrafterModule,
    directory: Path | str,
    extras: DrafterExtras,
    dtype: torch.dtype = torch.bfloat16,
    include_shared: bool = False,
) -> None:
    """Write `drafter` as a DeepSpec directory with our `extras`.

    The target's embedding and head are left out unless `include_shared`, which other engines may ask for. Raises
    ConfigError, before anything is written, for a packed drafter.
    """
    if drafter.packed_head is not None:
        raise ConfigError(
            "a packed drafter has no weights left to save; load it with kernel=None, or save it before packing"
        )
    write_dspark(drafter, Path(directory), extras, dtype, include_shared)


def extras_for(target: TargetInfo, name: str = "", thinking: bool | None = None) -> DrafterExtras:
    """Extras that bind a drafter to `target`; add a training summary with `dataclasses.replace`."""
    return DrafterExtras(
        name=name,
        target_name=target.name,
        target_hash=target.weights_hash,
        template_hash=target.template_hash,
        thinking=thinking,
    )


def check_target(checkpoint: Checkpoint, target: SharingTarget) -> None:
    """Raises CompatibilityError unless sizes, recorded names and hashes, and stored embeddings fit `target`."""
    config, source, info = checkpoint.config, checkpoint.weights.directory, target.info
    _check_sizes(config, info, source)
    _check_binding(checkpoint.extras, info, source)
    _check_copy(checkpoint.weights, EMBEDDING, target.embedding_weight)
    if config.draft_vocab_size is None:
        _check_copy(checkpoint.weights, HEAD, target.lm_head_weight)


def _check_sizes(config: DrafterShape, info: TargetInfo, source: Path) -> None:
    for what, drafter, target in (
        ("hidden_size", config.hidden_size, info.hidden_size),
        ("vocab_size", config.vocab_size, info.vocab_size),
        ("num_target_layers", config.num_target_layers, info.num_layers),
    ):
        if drafter != target:
            raise CompatibilityError(
                f"{source} was trained for a target with {what} {drafter}, but {info.name} has {target}; "
                "use a drafter of this target"
            )


def _check_binding(extras: DrafterExtras, info: TargetInfo, source: Path) -> None:
    hashes = extras.target_hash and info.weights_hash
    if hashes and extras.target_hash != info.weights_hash:
        raise CompatibilityError(
            f"{source} was trained for weights {extras.target_hash[:12]} of {extras.target_name or 'its target'}, but "
            f"{info.name} has weights {info.weights_hash[:12]}; load the target it was trained for"
        )
    if not hashes and extras.target_name and extras.target_name != info.name:
        raise CompatibilityError(f"{source} was trained for {extras.target_name!r}, but the target is {info.name!r}")
    if extras.template_hash and info.template_hash and extras.template_hash != info.template_hash:
        raise CompatibilityError(
            f"{source} was trained with chat template {extras.template_hash[:12]}, but {info.name} renders with "
            f"{info.template_hash[:12]}; use the template it was trained with"
        )


def _check_copy(weights: WeightFiles, name: str, own: Tensor) -> None:
    """Compare a frozen copy in the file with the target's tensor on some rows: the only binding DeepSpec records."""
    if name not in weights.files:
        return
    numbers, rows = weights.sample_rows(name, SAMPLED_ROWS)
    expected = own[numbers].float().cpu()
    difference = float((rows.float() - expected).norm() / expected.norm())
    if difference > FOREIGN:
        raise CompatibilityError(
            f"{weights.directory}: its copy of the target's {name} differs from this target's by {difference:.0%}; "
            "it was trained for another model"
        )
