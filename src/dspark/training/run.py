"""`train`: a recipe in, a drafter directory out. What the command line and the public API call."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.data.answers import read_answers, split_answers
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.extras import HELD_OUT_ACCEPTANCE, HELD_OUT_GREEDY_ACCEPTANCE
from dspark.drafters.registry import extras_for, save_drafter
from dspark.errors import CompatibilityError
from dspark.training.recipe import Recipe
from dspark.training.resume import resume_point
from dspark.training.setup import build_drafter, resumed_drafter, teacher_of
from dspark.training.step import StepResult
from dspark.training.trainable_target import TrainableTarget
from dspark.training.trainer import Cadence, Progress, Trainer

DRAFTER_DIRECTORY = "drafter"


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Where a run stands: `finished` when it reached its last step. `held_out` is None without held-out answers."""

    directory: Path
    drafter_directory: Path
    step: int
    finished: bool
    parameters: int
    held_out: StepResult | None

    def as_json(self) -> dict[str, Any]:
        """The object that `dspark train --json` prints."""
        return {
            "drafter": str(self.drafter_directory),
            "step": self.step,
            "finished": self.finished,
            "parameters": self.parameters,
            "held_out": None if self.held_out is None else self.held_out.as_json(),
        }


def train(
    recipe: Recipe,
    target: TrainableTarget,
    directory: Path,
    teacher_directory: Path | None = None,
    cadence: Cadence | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> TrainReport:
    """Train the recipe's drafter for `target` in `directory`, resuming what is there, and export it to `drafter/`.

    `teacher_directory` keeps the target's features and laws on disk for later epochs and runs. The drafter is exported
    also when the run was stopped before its last step.

    Raises:
        CompatibilityError: the recipe names another target, or `directory` holds a run of something else.
        ConfigError: all answers would be held out.
    """
    if recipe.target != target.info.name:
        raise CompatibilityError(f"The recipe trains for {recipe.target!r}, but the target is {target.info.name!r}.")
    data = recipe.data
    answers = read_answers(
        data.answers,
        max_temperature=data.max_temperature,
        max_length=data.max_length,
        template_hash=target.info.template_hash,
    )
    split = split_answers(answers, data.held_out)
    teacher = teacher_of(recipe, target, teacher_directory)
    point = resume_point(directory, recipe, target.info)
    drafter = (
        build_drafter(recipe, target, split.train, teacher)
        if point is None
        else resumed_drafter(recipe, target, answers, point.state)
    )
    trainer = Trainer(recipe, drafter, teacher, split, directory, cadence or Cadence(), watch)
    step = trainer.run()
    held_out = trainer.evaluate()
    exported = directory / DRAFTER_DIRECTORY
    extras = extras_for(target.info, thinking=False)
    summary = training_summary(recipe, step, held_out)
    save_drafter(drafter, exported, dataclasses.replace(extras, training=summary))
    finished = step >= recipe.optimiser.total_steps
    return TrainReport(directory, exported, step, finished, trained_parameters(drafter), held_out)


def trained_parameters(drafter: DrafterModule) -> int:
    """Number of the drafter's own weights."""
    return sum(parameter.numel() for parameter in drafter.parameters())


def training_summary(recipe: Recipe, step: int, held_out: StepResult | None) -> dict[str, Any]:
    """What a checkpoint tells people about how it was trained; paths are left out."""
    tree = recipe.model_dump(mode="json")
    tree["data"]["answers"] = recipe.data.answers.name
    if recipe.drafter.start_from is not None:
        tree["drafter"]["start_from"] = recipe.drafter.start_from.name
    return {"steps": step, **({} if held_out is None else _held_out_summary(held_out)), "recipe": tree}


def _held_out_summary(held_out: StepResult) -> dict[str, Any]:
    figures = held_out.as_json()
    return {
        "held_out_tau": round(held_out.tau, 4),
        HELD_OUT_ACCEPTANCE: figures["acceptance"],
        HELD_OUT_GREEDY_ACCEPTANCE: figures["greedy_acceptance"],
    }
