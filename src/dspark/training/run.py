"""`train`: a recipe in, a drafter directory out. What the command line and the public API call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspark.data.answers import AnswerSplit, read_answers, split_answers
from dspark.drafters.drafter_module import DrafterModule
from dspark.errors import CompatibilityError
from dspark.training.checkpoints import BEST
from dspark.training.export import export_drafter
from dspark.training.hidden_states import StateSource
from dspark.training.on_policy import OnPolicyProbe, OnPolicyResult, build_probe
from dspark.training.progress import Progress
from dspark.training.recipe import Recipe
from dspark.training.resume import resume_point
from dspark.training.setup import build_drafter, resumed_drafter, teacher_of
from dspark.training.step import StepResult
from dspark.training.stopping import Best
from dspark.training.trainable_target import TrainableTarget
from dspark.training.trainer import Cadence, Trainer
from dspark.training.world import ALONE, World
from dspark.types import Drafter

DRAFTER_DIRECTORY = "drafter"
GREEDY_TEXTS = "greedy_texts.jsonl"
"""Names in the run's directory: the drafter of the last step, and the target's answers to held-out prompts."""


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Where a run stands: `finished` when it reached its last step, or was `stopped_early` for want of progress.

    `held_out` (teacher-forced) and `on_policy` (decoding) are None where nothing was held out, or none was asked for.
    `skipped_steps` were not finite and changed nothing.
    """

    directory: Path
    drafter_directory: Path
    step: int
    finished: bool
    parameters: int
    held_out: StepResult | None
    on_policy: OnPolicyResult | None = None
    best: Best = field(default_factory=Best)
    stopped_early: bool = False
    skipped_steps: int = 0

    @property
    def best_directory(self) -> Path | None:
        """The drafter of the longest accepted length, None before the first evaluation."""
        return self.directory / BEST if self.best.step else None

    def as_json(self) -> dict[str, Any]:
        """The object that `dspark train --json` prints."""
        return {
            "drafter": str(self.drafter_directory),
            "step": self.step,
            "finished": self.finished,
            "parameters": self.parameters,
            "held_out": None if self.held_out is None else self.held_out.as_json(),
            "on_policy": None if self.on_policy is None else self.on_policy.as_json(),
            "best": self._best_as_json(),
            "stopped_early": self.stopped_early,
            "skipped_steps": self.skipped_steps,
        }

    def _best_as_json(self) -> dict[str, Any] | None:
        directory = self.best_directory
        return None if directory is None else {"drafter": str(directory), "step": self.best.step, "tau": self.best.tau}


def train(
    recipe: Recipe,
    target: TrainableTarget,
    directory: Path,
    teacher_directory: Path | None = None,
    cadence: Cadence | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    world: World = ALONE,
    source: StateSource | None = None,
) -> TrainReport:
    """Train the recipe's drafter for `target` in `directory`, resuming what is there, and export it to `drafter/`.

    `teacher_directory` keeps the target's features and laws on disk for later epochs and runs. The drafter is exported
    also when the run was stopped before its last step.

    Every process of a `world` calls this with the same arguments; the leading one reports what was measured. With
    `source`, the hidden states of the answers come from there, and `target` gives its weights and its LM head.

    Raises:
        CompatibilityError: the recipe names another target, or `directory` holds a run of something else.
        ConfigError: all answers would be held out.
    """
    if recipe.target != target.info.name:
        raise CompatibilityError(
            f"The recipe trains for {recipe.target!r}, but the target is {target.info.name!r}. Load the recipe's, or "
            f"train for this one with --set target={target.info.name}."
        )
    data = recipe.data
    answers = read_answers(
        data.answers,
        max_temperature=data.max_temperature,
        max_length=data.max_length,
        template_hash=target.info.template_hash,
        vocab_size=target.info.vocab_size,
    )
    split = split_answers(answers, data.held_out)
    recipe = recipe.settled(len(split.train))
    teacher = teacher_of(recipe, target, teacher_directory, source)
    point = resume_point(directory, recipe, target.info)
    drafter = (
        build_drafter(recipe, target, split.train, teacher)
        if point is None
        else resumed_drafter(recipe, target, answers, point.state)
    )
    probe = on_policy_probe(recipe, target, split, directory, drafter) if world.leads else None
    parameters = trained_parameters(drafter)
    trainer = Trainer(recipe, drafter, teacher, split, directory, cadence or Cadence(), watch, probe, world)
    step = trainer.run()
    measured = trainer.measure()
    exported = directory / DRAFTER_DIRECTORY
    with trainer.replica.whole():
        if world.leads:
            export_drafter(drafter, exported, recipe, target.info, step, measured)
        world.wait()
    return TrainReport(
        directory, exported, step, trainer.finished, parameters, measured.held_out,
        measured.on_policy, trainer.best, trainer.stopped_early, trainer.bad.total,
    )  # fmt: skip


def on_policy_probe(
    recipe: Recipe, target: TrainableTarget, split: AnswerSplit, directory: Path, drafter: Drafter
) -> OnPolicyProbe | None:
    """What decodes held-out prompts during the run, as the recipe's `evaluation` asks; None if it asks for none."""
    settings, info = recipe.evaluation, drafter.info
    answers = split.held_out[: settings.on_policy_answers]
    if not answers:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / GREEDY_TEXTS
    return build_probe(target, answers, settings.on_policy_tokens, info.gamma, info.target_layer_ids, path)


def trained_parameters(drafter: DrafterModule) -> int:
    """Number of the drafter's own weights."""
    return sum(parameter.numel() for parameter in drafter.parameters())
