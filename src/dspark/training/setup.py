"""From a recipe to a trainer: build the drafter for the target, start its weights, wire up the teacher."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from dspark.data.answers import Answer
from dspark.data.teacher_record import FeaturePrecision
from dspark.drafters.config import DrafterShape
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.registry import load_drafter
from dspark.errors import CompatibilityError
from dspark.training.algorithms.algorithm import Material
from dspark.training.algorithms.registry import algorithm_named
from dspark.training.hidden_states import StateSource
from dspark.training.recipe import Recipe
from dspark.training.state import TrainingState
from dspark.training.teacher import Teacher, TeacherTarget, teacher_store
from dspark.training.trainable_target import TrainableTarget
from dspark.training.warm_start import draft_vocabulary


def build_drafter(
    recipe: Recipe, target: TrainableTarget, answers: Sequence[Answer], teacher: Teacher
) -> DrafterModule:
    """A fresh drafter for `target`, with the starts that the recipe asks for; `answers` give vocabulary and bigrams."""
    algorithm, section = algorithm_named(recipe.algorithm), recipe.drafter
    config = algorithm.config(section, target)
    if section.start_from is not None:
        return continued_drafter(section.start_from, config, target)
    size = section.draft_vocab_size
    drafter = algorithm.construct(config, target, None if size is None else draft_vocabulary(answers, size))
    drafter.initialize(torch.Generator().manual_seed(recipe.seed))
    algorithm.start(drafter, section, Material(target, teacher, answers, recipe.seed))
    return drafter


def resumed_drafter(
    recipe: Recipe, target: TrainableTarget, answers: Sequence[Answer], state: TrainingState
) -> DrafterModule:
    """A drafter of the recipe's shape with the draft vocabulary of `state`, whose weights are still to be restored.

    States without identity do not tell their vocabulary. It was counted on all `answers`, held-out ones included.
    """
    algorithm, section = algorithm_named(recipe.algorithm), recipe.drafter
    config = algorithm.config(section, target)
    kept = state.draft_token_ids
    if kept is None and state.identity is None:
        if section.start_from is not None:
            return continued_drafter(section.start_from, config, target)
        kept = None if section.draft_vocab_size is None else draft_vocabulary(answers, section.draft_vocab_size)
    return algorithm.construct(config, target, kept)


def continued_drafter(directory: Path, config: DrafterShape, target: TrainableTarget) -> DrafterModule:
    """The drafter in `directory` with its draft vocabulary, trainable again.

    Raises:
        CompatibilityError: its shape is not the recipe's `config`.
    """
    drafter = load_drafter(directory, target, kernel=None)
    different = differences(drafter.shape, config)
    if different:
        raise CompatibilityError(f"{directory} differs from the recipe in {', '.join(different)}; adapt the recipe.")
    return drafter.train().requires_grad_(True)


def differences(found: Any, expected: Any) -> list[str]:
    """Names of the fields in which two configurations differ, or what kinds they are."""
    if type(found) is not type(expected):
        return [f"its kind ({type(found).__name__}, the recipe makes a {type(expected).__name__})"]
    return [f.name for f in fields(expected) if getattr(found, f.name) != getattr(expected, f.name)]


def teacher_of(
    recipe: Recipe, target: TeacherTarget, directory: Path | None, source: StateSource | None = None
) -> Teacher:
    """The recipe's teacher, keeping its records in `directory` if one is given, its states those of `source` if any."""
    taps, top_k = taps_of(recipe), recipe.data.teacher_top_k
    precision = FeaturePrecision(recipe.data.feature_precision)
    store = None if directory is None else teacher_store(directory, target.info, taps, top_k, precision)
    return Teacher(target, taps, top_k, store, precision, source)


def taps_of(recipe: Recipe) -> tuple[int, ...]:
    """The target's layers that the recipe's drafter reads."""
    return algorithm_named(recipe.algorithm).taps(recipe.drafter)
