"""From a recipe to a trainer: build the drafter for the target, start its weights, wire up the teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dspark.data.answers import Answer
from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.dspark import DSpark
from dspark.drafters.registry import load_drafter
from dspark.errors import CompatibilityError
from dspark.training.recipe import Recipe
from dspark.training.state import TrainingState
from dspark.training.teacher import Teacher, TeacherTarget
from dspark.training.warm_start import draft_vocabulary, start_from_bigrams, start_from_layers

NORM_SAMPLE = 4
"""Answers on which a warm start measures the scale of queries and keys."""


class TrainableTarget(TeacherTarget, Protocol):
    """A target that a drafter can be trained for: its teacher, its weights, and its shape."""

    embedding_weight: Tensor
    lm_head_weight: Tensor

    @property
    def config(self) -> "DecoderShape": ...

    def layer_weights(self, layer: int) -> Mapping[str, Tensor]: ...


class DecoderShape(Protocol):
    """Sizes of the target's decoder that the drafter's layers share."""

    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope(self) -> "RotaryShape": ...


class RotaryShape(Protocol):
    """The target's rotary base; drafters use it without scaling."""

    @property
    def theta(self) -> float: ...


def drafter_config(recipe: Recipe, target: TrainableTarget) -> DrafterConfig:
    """The drafter's shape: the target's widths, the recipe's depth, taps and heads."""
    section, shape, info = recipe.drafter, target.config, target.info
    return DrafterConfig(
        hidden_size=info.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=section.num_hidden_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=info.vocab_size,
        num_target_layers=info.num_layers,
        target_layer_ids=section.target_layer_ids,
        mask_token_id=section.mask_token_id,
        block_size=section.block_size,
        markov_rank=section.markov_rank,
        markov_head_type=HeadKind(section.markov_head_type),
        enable_confidence_head=section.enable_confidence_head,
        confidence_head_with_markov=section.markov_rank > 0,
        draft_vocab_size=section.draft_vocab_size,
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope.theta,
        max_position_embeddings=info.max_positions,
    )


def build_drafter(recipe: Recipe, target: TrainableTarget, answers: Sequence[Answer], teacher: Teacher) -> DSpark:
    """A fresh drafter for `target`, with the starts that the recipe asks for; `answers` give vocabulary and bigrams."""
    config = drafter_config(recipe, target)
    if recipe.drafter.start_from is not None:
        return continued_drafter(recipe.drafter.start_from, config, target)
    size = config.draft_vocab_size
    kept = None if size is None else draft_vocabulary(answers, size)
    drafter = DSpark(config, target.embedding_weight, target.lm_head_weight, kept)
    drafter.initialize(torch.Generator().manual_seed(recipe.seed))
    if recipe.drafter.warm_start:
        records = teacher.records(answers[:NORM_SAMPLE])
        features = torch.cat([record.features for record in records])
        start_from_layers(drafter, target, features[:, -config.hidden_size :])
    if recipe.drafter.bigram_start:
        start_from_bigrams(drafter, answers, recipe.seed)
    return drafter


def resumed_drafter(recipe: Recipe, target: TrainableTarget, answers: Sequence[Answer], state: TrainingState) -> DSpark:
    """A drafter of the recipe's shape with the draft vocabulary of `state`, whose weights are still to be restored.

    States without identity do not tell their vocabulary. It was counted on all `answers`, held-out ones included.
    """
    config = drafter_config(recipe, target)
    kept = state.draft_token_ids
    if kept is None and state.identity is None:
        if recipe.drafter.start_from is not None:
            return continued_drafter(recipe.drafter.start_from, config, target)
        kept = None if config.draft_vocab_size is None else draft_vocabulary(answers, config.draft_vocab_size)
    return DSpark(config, target.embedding_weight, target.lm_head_weight, kept)


def continued_drafter(directory: Path, config: DrafterConfig, target: TrainableTarget) -> DSpark:
    """The drafter in `directory` with its draft vocabulary, trainable again.

    Raises:
        CompatibilityError: its shape is not the recipe's `config`.
    """
    drafter = load_drafter(directory, target, kernel=None)
    different = [f.name for f in fields(config) if getattr(config, f.name) != getattr(drafter.config, f.name)]
    if different:
        raise CompatibilityError(f"{directory} differs from the recipe in {', '.join(different)}; adapt the recipe.")
    return drafter.train().requires_grad_(True)


def teacher_of(recipe: Recipe, target: TeacherTarget, directory: Path | None) -> Teacher:
    """The recipe's teacher, keeping its records in `directory` if one is given."""
    return Teacher(target, recipe.drafter.target_layer_ids, recipe.data.teacher_top_k, directory)
