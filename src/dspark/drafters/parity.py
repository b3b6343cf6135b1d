"""Recomputing recorded vectors of another implementation, tensor by tensor.

Shapes: P anchor position, G gamma, A anchors, T tokens, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dspark.core.anchors import block_labels
from dspark.core.losses import LossCoefficients, block_loss
from dspark.core.masks import BlockLayout
from dspark.drafters.dspark import DSpark
from dspark.drafters.eagle3 import Eagle3, Eagle3Config
from dspark.drafters.formats.deepspec import build_dspark, build_eagle3, open_checkpoint, shared_tensors
from dspark.drafters.registry import SharingTarget, check_target
from dspark.errors import FormatError
from dspark.types import DraftBlock

Tensors = Mapping[str, Tensor]
INPUTS = {"features", "tokens", "input_ids", "target_last_hidden", "loss_mask", "anchors"}


@dataclass(frozen=True, slots=True)
class ParityReport:
    """Largest absolute error of every recorded tensor."""

    tensors: Mapping[str, float]

    @property
    def max_abs_error(self) -> float:
        """The worst of all."""
        return max(self.tensors.values())


def parity(directory: Path | str, vectors_file: Path | str, target: SharingTarget | None = None) -> ParityReport:
    """Run the drafter in `directory` in float32 on the inputs of a safetensors file and compare every recorded output.

    Handles three-round inference records and one-step training records (see the golden vectors' README). `target` is
    needed only when the directory does not store its embedding and head. Raises FormatError for unreadable files and
    for tensors that this drafter does not produce.
    """
    checkpoint, vectors = open_checkpoint(Path(directory)), _read(Path(vectors_file))
    if target is not None:
        check_target(checkpoint, target)
    shared = shared_tensors(checkpoint) if target is None else (target.embedding_weight, target.lm_head_weight)
    try:
        if isinstance(checkpoint.config, Eagle3Config):
            computed = _eagle3_rounds(build_eagle3(checkpoint, *shared, torch.float32), vectors)
        else:
            drafter = build_dspark(checkpoint, *shared, torch.float32)
            computed = _training_step(drafter, vectors) if "anchors" in vectors else _rounds(drafter, vectors)
    except KeyError as error:
        raise FormatError(
            f"{vectors_file} lacks the input {error}; expected a record of this kind of drafter"
        ) from None
    return ParityReport(_compare(computed, vectors, Path(vectors_file)))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path} is not a readable safetensors file: {error}") from error


def _compare(computed: Tensors, vectors: Tensors, source: Path) -> dict[str, float]:
    recorded = {name: t for name, t in vectors.items() if name not in INPUTS and not name.endswith("anchor_position")}
    unknown = sorted(set(recorded) - set(computed))
    if unknown or not recorded:
        raise FormatError(f"{source} records {unknown[:5] or 'nothing'}, which this drafter does not produce")
    errors = {}
    for name, expected in recorded.items():
        if computed[name].shape != expected.shape:
            raise FormatError(
                f"{source}: {name} is {list(expected.shape)}, this drafter makes {list(computed[name].shape)}"
            )
        difference = computed[name].detach().double() - expected.double()
        errors[name] = float(difference.abs().nan_to_num(nan=float("inf")).max())
    return errors


def _rounds(drafter: DSpark, vectors: Tensors) -> Tensors:
    """All rounds through one incremental cache."""
    features, tokens = vectors["features"], vectors["tokens"]
    cache = drafter.new_cache(len(features))
    computed: dict[str, Tensor] = {}
    for index, position in enumerate(_anchor_positions(vectors)):
        drafter.extend(features[cache.length : position], cache)
        anchor = int(tokens[position])
        block = drafter.begin(anchor, cache)
        outputs = {"hidden": block.hidden, "base_logits": drafter.base_logits(block.hidden)}
        outputs |= _draft_greedily(block, anchor, drafter.config.block_size)
        computed |= {f"round{index}.{name}": tensor for name, tensor in outputs.items()}
    return computed


def _eagle3_rounds(drafter: Eagle3, vectors: Tensors) -> Tensors:
    features, tokens = vectors["features"], vectors["tokens"]
    features = torch.cat((drafter.embed(tokens[: len(features)]), features), dim=-1)
    cache = drafter.new_cache(len(features))
    computed: dict[str, Tensor] = {}
    for index, position in enumerate(_anchor_positions(vectors)):
        drafter.extend(features[cache.length : position], cache)
        anchor = int(tokens[position])
        block = drafter.begin(anchor, cache)
        computed[f"round{index}.hidden"] = block.state
        outputs = _draft_greedily(block, anchor, drafter.config.ttt_length)
        computed |= {f"round{index}.{name}": tensor for name, tensor in outputs.items()}
    return computed


def _anchor_positions(vectors: Tensors) -> list[int]:
    names = (f"round{index}.anchor_position" for index in range(len(vectors)))
    positions = [int(vectors[name]) for name in names if name in vectors]
    if not positions:
        raise KeyError("round0.anchor_position")
    return positions


def _draft_greedily(block: DraftBlock, anchor: int, gamma: int) -> dict[str, Tensor]:
    logits, confidences, tokens = [], [], [anchor]
    for _ in range(gamma):
        slot, confidence = block.step(tokens[-1])
        logits.append(slot)
        confidences.append(confidence)
        tokens.append(int(slot.argmax()))
    outputs = {"draft_logits": torch.stack(logits), "greedy_tokens": torch.tensor(tokens[1:])}
    known = [c for c in confidences if c is not None]
    return outputs | ({"confidence_logits": torch.tensor(known)} if known else {})


def _training_step(drafter: DSpark, vectors: Tensors) -> Tensors:
    token_ids, anchors = vectors["input_ids"], vectors["anchors"]
    layout = BlockLayout.pack(anchors, (len(token_ids),), drafter.config.block_size)
    labels = block_labels(token_ids, vectors["loss_mask"], layout)
    hidden = drafter.training_states(vectors["features"], token_ids, anchors)
    draft_logits = drafter.draft_logits(hidden, labels.previous)
    confidence = drafter.confidence_logits(hidden, labels.previous)
    target_logits = _target_logits(drafter, vectors["target_last_hidden"], layout)
    coefficients = LossCoefficients.dflash() if drafter.config.is_dflash else LossCoefficients()
    loss = block_loss(draft_logits, target_logits, labels.targets, labels.supervised, confidence, coefficients)
    loss.total.backward()  # type: ignore[no-untyped-call]
    outputs = {
        "draft_logits": draft_logits,
        "target_logits": target_logits,
        "target_ids": labels.targets,
        "eval_mask": labels.supervised,
        "loss": loss.total[None],
        **{f"grad.{name}": p.grad for name, p in drafter.named_parameters() if p.grad is not None},
    }
    return outputs if confidence is None else outputs | {"confidence_logits": confidence}


def _target_logits(drafter: DSpark, last_hidden: Tensor, layout: BlockLayout) -> Tensor:
    """[A, G, V]: what the target says about label position anchor + k + 1, from its state one position before."""
    places = layout.anchors[:, None] + torch.arange(layout.gamma)
    return drafter.base_logits(last_hidden[places.clamp(max=len(last_hidden) - 1)])
