"""What `dspark inspect DIR` tells about a drafter directory, from its config and tensor headers alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from dspark.drafters.config import DrafterConfig
from dspark.drafters.eagle3 import Eagle3Config
from dspark.drafters.formats.deepspec import Checkpoint, open_checkpoint
from dspark.drafters.formats.deepspec_tensors import AnyConfig, own_shapes, shared_shapes
from dspark.drafters.gemma4 import Gemma4Config
from dspark.drafters.mtp import MTPConfig


@dataclass(frozen=True, slots=True)
class DrafterDescription:
    """A drafter in words and numbers.

    `parameters` counts the drafter's own (trained) numbers, `shared_parameters` the stored copies of the target's.
    `layout_reason` says why `layout` is believed; `notes` are remarks a user should see.
    """

    kind: str
    architecture: str
    producer: str
    layout: str
    layout_reason: str
    gamma: int
    parameters: int
    shared_parameters: int
    file_bytes: int
    sizes: Mapping[str, Any]
    target: Mapping[str, str]
    template_hash: str
    thinking: bool | None
    training: Mapping[str, Any]
    notes: tuple[str, ...]


def describe(directory: Path | str) -> DrafterDescription:
    """Describe the drafter in `directory`. Raises FormatError when it is not a complete DeepSpec checkpoint."""
    checkpoint = open_checkpoint(Path(directory))
    config, extras, weights = checkpoint.config, checkpoint.extras, checkpoint.weights
    layout, reason = checkpoint.layout
    stored = [shape for name, shape in shared_shapes(config).items() if name in weights.files]
    return DrafterDescription(
        kind=_kind(config),
        architecture=checkpoint.architecture,
        producer=checkpoint.producer,
        layout=str(layout) if isinstance(config, DrafterConfig) else "chain",
        layout_reason=reason if isinstance(config, DrafterConfig) else f"{_kind(config)} drafts token by token",
        gamma=config.gamma,
        parameters=sum(map(prod, own_shapes(config).values())),
        shared_parameters=sum(map(prod, stored)),
        file_bytes=sum(path.stat().st_size for path in set(weights.files.values())),
        sizes=asdict(config),
        target={"name": extras.target_name, "weights_hash": extras.target_hash},
        template_hash=extras.template_hash,
        thinking=extras.thinking,
        training=extras.training,
        notes=tuple(_notes(checkpoint)),
    )


def _kind(config: AnyConfig) -> str:
    if isinstance(config, MTPConfig):
        return "MTP"
    if isinstance(config, Eagle3Config):
        return "Eagle3"
    family = " for Gemma4" if isinstance(config, Gemma4Config) else ""
    if config.is_dflash:
        return f"DFlash{family}"
    head = (
        f"{config.markov_head_type} head of rank {config.markov_rank}" if config.markov_rank else "no sequential head"
    )
    return f"DSpark{family} ({head}, {'with' if config.enable_confidence_head else 'without'} confidence)"


def _notes(checkpoint: Checkpoint) -> list[str]:
    config, extras, notes = checkpoint.config, checkpoint.extras, list(checkpoint.notes)
    if not (extras.target_hash or extras.target_name):
        notes.append("the target is not recorded: only sizes and stored embeddings can be checked on load")
    if any(name not in checkpoint.weights.files for name in shared_shapes(config)):
        notes.append("embedding or head are not stored: the target's are used")
    if config.draft_vocab_size is not None:
        notes.append(f"drafts range over {config.draft_vocab_size} of {config.vocab_size} target tokens")
    return notes
