"""The drafter of a run as a directory that others load, with a summary of how it was trained."""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.extras import HELD_OUT_ACCEPTANCE, HELD_OUT_GREEDY_ACCEPTANCE
from dspark.drafters.registry import extras_for, save_drafter
from dspark.training.on_policy import OnPolicyResult
from dspark.training.recipe import Recipe
from dspark.training.step import StepResult
from dspark.types import TargetInfo


@dataclass(frozen=True, slots=True)
class Measured:
    """What was last measured of a drafter; None where it was not."""

    held_out: StepResult | None = None
    on_policy: OnPolicyResult | None = None

    @property
    def tau(self) -> float | None:
        """The accepted length that decides which drafter is best: of decoding, else teacher-forced."""
        measured = self.on_policy or self.held_out
        return None if measured is None else measured.tau


def export_drafter(
    drafter: DrafterModule, directory: Path, recipe: Recipe, info: TargetInfo, step: int, measured: Measured
) -> None:
    """Write `drafter` after `step` to `directory`, replacing what is there."""
    extras = dataclasses.replace(extras_for(info, thinking=False), training=training_summary(recipe, step, measured))
    save_drafter(drafter, directory, extras)


def replace_export(
    drafter: DrafterModule, directory: Path, recipe: Recipe, info: TargetInfo, step: int, measured: Measured
) -> None:
    """`export_drafter` so that a kill leaves the old weights or the new ones, never some of each."""
    partial, old = (directory.with_name(directory.name + ending) for ending in (".partial", ".old"))
    shutil.rmtree(partial, ignore_errors=True)
    export_drafter(drafter, partial, recipe, info, step, measured)
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    partial.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def training_summary(recipe: Recipe, step: int, measured: Measured) -> dict[str, Any]:
    """What a checkpoint tells people about how it was trained; paths are left out."""
    tree = recipe.model_dump(mode="json")
    tree["data"]["answers"] = recipe.data.answers.name
    if recipe.drafter.start_from is not None:
        tree["drafter"]["start_from"] = recipe.drafter.start_from.name
    summary: dict[str, Any] = {"steps": step}
    if measured.held_out is not None:
        summary |= _held_out_summary(measured.held_out)
    if measured.on_policy is not None:
        summary["on_policy_tau"] = round(measured.on_policy.tau, 4)
    return summary | {"recipe": tree}


def _held_out_summary(held_out: StepResult) -> dict[str, Any]:
    figures = held_out.as_json()
    return {
        "held_out_tau": round(held_out.tau, 4),
        HELD_OUT_ACCEPTANCE: figures["acceptance"],
        HELD_OUT_GREEDY_ACCEPTANCE: figures["greedy_acceptance"],
    }
