"""DeepSpec checkpoint directories: config.json and safetensors, read and written with every key accounted for."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dspark.disk import naming
from dspark.drafters.config import DrafterConfig
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.dspark import DSpark
from dspark.drafters.eagle3 import Eagle3, Eagle3Config
from dspark.drafters.extras import DrafterExtras, Layout
from dspark.drafters.formats.chain_config import chain_config_json
from dspark.drafters.formats.deepspec_config import (
    EXTRAS_KEY,
    config_json,
    config_path,
    parse_config,
    parse_extras,
    passed_over,
)
from dspark.drafters.formats.deepspec_tensors import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    HEAD,
    TARGET_TO_DRAFT,
    AnyConfig,
    draft_map_shapes,
    own_shapes,
    shared_shapes,
    stored_name,
)
from dspark.drafters.formats.fields import Fields
from dspark.drafters.formats.weight_files import SINGLE, WeightFiles
from dspark.drafters.gemma4 import Gemma4Config, Gemma4DSpark
from dspark.drafters.mtp import MTP, MTPConfig
from dspark.errors import ConfigError, FormatError

D = TypeVar("D", bound=DrafterModule)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened directory: its configuration, its tensors by header only, and `notes` on what was passed over."""

    config: AnyConfig
    extras: DrafterExtras
    weights: WeightFiles
    architecture: str
    producer: str
    notes: tuple[str, ...] = ()

    @property
    def layout(self) -> tuple[Layout, str]:
        """The block layout, and why it is believed to be that one."""
        if self.extras.layout is not None:
            return self.extras.layout, f"config.json says so (key {EXTRAS_KEY}.layout)"
        return Layout.ANCHOR_FIRST, "no layout flag, and DeepSpec, whose packaging this is, trains anchor-first blocks"


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read and check a directory without reading weights.

    Raises FormatError for foreign packagings, tensors that are missing, unknown or misshapen, and fill-in layouts.
    """
    fields = Fields.read(config_path(directory))
    config, extras = parse_config(fields), parse_extras(fields)
    producer = "dspark" if EXTRAS_KEY in fields.entries else "DeepSpec"
    architecture = str(fields.entries["architectures"][0])
    weights = WeightFiles.open(directory)
    checkpoint = Checkpoint(config, extras, weights, architecture, producer, passed_over(fields))
    _account_for(checkpoint)
    if checkpoint.layout[0] is not Layout.ANCHOR_FIRST:
        raise FormatError(
            f"{directory} has the layout {checkpoint.layout[0]}; only {Layout.ANCHOR_FIRST} can be run, and others are "
            "not converted yet: use an anchor-first drafter"
        )
    return checkpoint


DRAFTERS: Mapping[type[Any], Callable[..., DrafterModule]] = {
    DrafterConfig: DSpark,
    Gemma4Config: Gemma4DSpark,
    Eagle3Config: Eagle3,
    MTPConfig: MTP,
}
"""The drafter of each kind of configuration; all are constructed alike."""


def build_any(checkpoint: Checkpoint, embedding: Tensor, head: Tensor, dtype: torch.dtype) -> DrafterModule:
    """The drafter of a checkpoint on a target's embedding and head [V, d], as `dtype`."""
    config, extras = checkpoint.config, checkpoint.extras
    name = extras.name or checkpoint.weights.directory.resolve().name
    kept = draft_token_ids(checkpoint.weights, config)
    construct = DRAFTERS[type(config)]
    drafter = construct(config, embedding.to(dtype), head.to(dtype), kept, name, extras.acceptance).to(dtype)
    _load(drafter, checkpoint)
    return drafter


def build_dspark(checkpoint: Checkpoint, embedding: Tensor, head: Tensor, dtype: torch.dtype) -> DSpark:
    """`build_any` of a DSpark or DFlash checkpoint. Raises FormatError for any other."""
    return _built(DSpark, "a DSpark or DFlash", DrafterConfig, checkpoint, embedding, head, dtype)


def build_eagle3(checkpoint: Checkpoint, embedding: Tensor, head: Tensor, dtype: torch.dtype) -> Eagle3:
    """`build_any` of an Eagle3 checkpoint. Raises FormatError for any other."""
    return _built(Eagle3, "an Eagle3", Eagle3Config, checkpoint, embedding, head, dtype)


def _built(
    kind: type[D],
    title: str,
    config: type[Any],
    checkpoint: Checkpoint,
    embedding: Tensor,
    head: Tensor,
    dtype: torch.dtype,
) -> D:
    if not isinstance(checkpoint.config, config):
        raise FormatError(f"{checkpoint.weights.directory} holds {checkpoint.architecture}, expected {title}")
    drafter = build_any(checkpoint, embedding, head, dtype)
    assert isinstance(drafter, kind)
    return drafter


def shared_tensors(checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    """The file's own copies of (embedding, head). Raises FormatError when it relies on the target for them."""
    weights = checkpoint.weights
    missing = [name for name in (EMBEDDING, HEAD) if name not in weights.files]
    if missing:
        raise FormatError(f"{weights.directory} does not store {missing}; name the target, whose tensors it shares")
    return weights.tensor(EMBEDDING), weights.tensor(HEAD)


def draft_token_ids(weights: WeightFiles, config: AnyConfig) -> Tensor | None:
    """Target ids [V_draft] of the draft vocabulary, None without pruning. Raises FormatError for an unusable map."""
    if config.draft_vocab_size is None:
        return None
    offsets, kept = weights.tensor(DRAFT_TO_TARGET).long(), weights.tensor(TARGET_TO_DRAFT).bool()
    ids = offsets + torch.arange(len(offsets))
    marks = torch.zeros(config.vocab_size, dtype=torch.bool)
    inside = bool(((ids >= 0) & (ids < config.vocab_size)).all())
    if inside:
        marks[ids] = True
    if not inside or int(marks.sum()) != len(ids) or not torch.equal(marks, kept):
        raise FormatError(
            f"{weights.directory}: d2t and t2d disagree; expected {len(ids)} distinct target ids below "
            f"{config.vocab_size} (draft id + d2t[draft id]), exactly those that t2d marks"
        )
    return ids


def write_dspark(
    drafter: DrafterModule, directory: Path, extras: DrafterExtras, dtype: torch.dtype, include_shared: bool
) -> None:
    """Write config.json and model.safetensors; `include_shared` adds copies of the target's embedding and head.

    Files are replaced one by one, each as a whole. Raises ConfigError for drafters that have no packaging.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {stored_name(name, drafter.shape): tensor.to(dtype) for name, tensor in drafter.state_dict().items()}
    if include_shared:
        tensors |= {EMBEDDING: drafter.embedding.to(dtype), HEAD: drafter.head.to(dtype)}
    tensors |= _draft_map(drafter)
    name = str(dtype).removeprefix("torch.")
    text = json.dumps(_config_json(drafter, extras, name), indent=2, sort_keys=True) + "\n"
    partial = directory / f"{SINGLE}.partial"
    # Clones, because an embedding tied to the head would be one storage under two names, which safetensors refuses.
    with naming(directory):
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, partial, {"format": "pt"})
        partial.replace(directory / SINGLE)
        partial = config_path(directory).with_suffix(".json.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(config_path(directory))


def _config_json(drafter: DrafterModule, extras: DrafterExtras, dtype: str) -> Mapping[str, Any]:
    config = drafter.shape
    if isinstance(config, DrafterConfig):
        return config_json(config, extras, dtype)
    if isinstance(config, Eagle3Config | MTPConfig):
        return chain_config_json(config, extras, dtype)
    raise ConfigError(f"there is no packaging for a {type(drafter).__name__}; it cannot be saved")


def _draft_map(drafter: DrafterModule) -> Mapping[str, Tensor]:
    ids = drafter.draft_token_ids
    if ids is None:
        return {}
    kept = torch.zeros(drafter.info.vocab_size, dtype=torch.bool)
    kept[ids.cpu()] = True
    return {DRAFT_TO_TARGET: ids.cpu() - torch.arange(len(ids)), TARGET_TO_DRAFT: kept}


def _account_for(checkpoint: Checkpoint) -> None:
    """Refuse a file unless its tensors are exactly the drafter's, and optionally the shared ones."""
    found, source = checkpoint.weights.shapes, checkpoint.weights.directory
    required, optional = own_shapes(checkpoint.config), shared_shapes(checkpoint.config)
    required |= draft_map_shapes(checkpoint.config)
    missing = sorted(set(required) - set(found))
    unknown = sorted(set(found) - set(required) - set(optional))
    if missing or unknown:
        raise FormatError(
            f"{source} does not hold what its config.json describes: {_listing('missing', missing)}"
            f"{_listing('unknown', unknown)}correct the head flags and sizes in config.json or fetch the weights again"
        )
    for name, shape in found.items():
        expected = (required | optional)[name]
        if shape != expected:
            raise FormatError(f"{source}: {name} is {list(shape)}, config.json makes it {list(expected)}")


def _listing(title: str, names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{title} {', '.join(names[:5])}{more}; " if names else ""


@torch.no_grad()
def _load(module: nn.Module, checkpoint: Checkpoint) -> None:
    for name, tensor in module.state_dict().items():
        tensor.copy_(checkpoint.weights.tensor(stored_name(name, checkpoint.config)))
