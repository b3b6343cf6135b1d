"""Drafters that start from their target: its last decoder layers, its last tap, and its bigrams."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from dspark.data.answers import Answer
from dspark.data.teacher_record import UNREAD_FEATURES
from dspark.drafters.config import DecoderShape
from dspark.drafters.dspark import DSpark
from dspark.errors import CompatibilityError
from dspark.nn.norm import rms_norm
from dspark.training.bigram import bigram_factors
from dspark.training.teacher import Teacher
from dspark.types import TargetInfo

NORM_SAMPLE = 4
"""Answers on which a warm start measures the scale of queries and keys."""


_COPIED = frozenset(
    f"{name}.weight"
    for name in (
        "input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        *(f"self_attn.{projection}_proj" for projection in "qkvo"),
    )
)  # fmt: skip
"""What a warm start needs of a target's layer; a drafter's further ingredients begin as they are."""


class LayerSource(Protocol):
    """The part of a target that a warm start copies from."""

    info: TargetInfo

    def layer_weights(self, layer: int) -> Mapping[str, Tensor]: ...


def draft_vocabulary(answers: Sequence[Answer], size: int) -> Tensor:
    """The `size` most frequent response tokens of `answers`, in ascending id order (ties: lower id)."""
    counts = Counter(token for answer in answers for token in answer.response_ids)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = set(ranked[:size])
    filler = (token for token in range(size + len(chosen)) if token not in chosen)
    while len(chosen) < size:
        chosen.add(next(filler))
    return torch.tensor(sorted(chosen))


@torch.no_grad()
def start_from_layers(drafter: DSpark, target: LayerSource, last_tap: Tensor) -> None:
    """Copy the target's last decoder layers into the backbone, which then reads the last tap only.

    `fc` becomes the identity on that tap and `hidden_norm` the input norm of the layer that would read it. The
    drafter's per-head q/k norms, which a Llama target lacks, get the root-mean-square that the layer's own queries
    and keys have on `last_tap` [T, d], so that attention logits keep their scale.
    """
    config = drafter.config
    count = target.info.num_layers
    _check_layers(drafter, target)
    width = config.hidden_size
    drafter.fc.weight.zero_()
    drafter.fc.weight[:, -width:] = torch.eye(width)
    reader = target.layer_weights(min(config.target_layer_ids[-1] + 1, count - 1))
    drafter.hidden_norm.weight.copy_(reader["input_layernorm.weight"])
    for index, layer in enumerate(drafter.layers):
        copy_layer(layer, target.layer_weights(count - config.num_hidden_layers + index), last_tap, config)


@torch.no_grad()
def copy_layer(layer: nn.Module, weights: Mapping[str, Tensor], states: Tensor, config: DecoderShape) -> None:
    """Copy a target layer's `weights` into the parameters of the same names; wider matrices get them as last columns.

    Per-head q/k norms that the target lacks get the root-mean-square of its queries and keys on `states` [T, d].
    """
    weights = {name: weight.float() for name, weight in weights.items()}
    parameters = _by_target_name(layer)
    for name, parameter in parameters.items():
        if name in weights:
            parameter[..., -weights[name].shape[-1] :].copy_(weights[name])
    normed = rms_norm(states.float(), weights["input_layernorm.weight"], config.rms_norm_eps)
    for short in ("q", "k"):
        if f"self_attn.{short}_norm.weight" not in weights:
            heads = (normed @ weights[f"self_attn.{short}_proj.weight"].T).view(len(normed), -1, config.head_dim)
            parameters[f"self_attn.{short}_norm.weight"].fill_(heads.square().mean().sqrt())


def sampled_features(teacher: Teacher, answers: Sequence[Answer]) -> Tensor:
    """Features [T, m * d] of a few answers, on which a warm start measures the scale of queries and keys."""
    records = teacher.records(answers[:NORM_SAMPLE])
    return torch.cat([record.features[:-UNREAD_FEATURES] for record in records])


@torch.no_grad()
def start_from_bigrams(drafter: DSpark, answers: Sequence[Answer], seed: int) -> None:
    """Fit the Markov head to the bigrams of `answers` (see `training.bigram`); a drafter without one is left alone."""
    head = drafter.markov_head
    if head is None:
        return
    vocabulary = torch.arange(drafter.config.vocab_size) if drafter.draft_token_ids is None else drafter.draft_token_ids
    sequences = (answer.response_ids for answer in answers)
    w1, w2 = bigram_factors(sequences, vocabulary, drafter.config.vocab_size, drafter.config.markov_rank, seed=seed)
    head.markov_w1.weight.copy_(w1)
    head.markov_w2.weight.copy_(w2)


def _by_target_name(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by the names of a dense layer: the shared expert of a mixture stands for the MLP and is as wide."""
    return {name.replace("mlp.shared_experts.", "mlp."): parameter for name, parameter in layer.named_parameters()}


def _check_layers(drafter: DSpark, target: LayerSource) -> None:
    """Raises CompatibilityError unless the target's last layers have what the drafter's would copy."""
    first = target.info.num_layers - drafter.config.num_hidden_layers
    for index, layer in enumerate(drafter.layers):
        weights = target.layer_weights(first + index)
        for name, parameter in _by_target_name(layer).items():
            found = list(weights[name].shape) if name in weights else None
            if name in _COPIED and found != list(parameter.shape):
                raise CompatibilityError(
                    f"layer {first + index} of {target.info.name} has {name} {found or 'missing'}, the drafter's is "
                    f"{list(parameter.shape)}: it cannot start from it. Set drafter.warm_start to false."
                )
