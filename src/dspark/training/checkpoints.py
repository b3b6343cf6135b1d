"""Drafters that a run keeps beside its state: the best one, and those of the last evaluations."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from dspark.drafters.drafter_module import DrafterModule
from dspark.training.export import Measured, replace_export
from dspark.training.recipe import Recipe
from dspark.training.stopping import Best
from dspark.types import TargetInfo

BEST, RECENT = "best", "checkpoints"
"""Their places in the run's directory; the recent ones are called `step-N`."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Writes them, as directories that `load_drafter` opens."""

    directory: Path
    recipe: Recipe
    info: TargetInfo

    def evaluated(self, drafter: DrafterModule, step: int, measured: Measured, best: Best) -> None:
        """After an evaluation: keep `drafter` if it is the best so far, and as the most recent if any are kept."""
        if best.step == step:
            self._write(drafter, self.directory / BEST, step, measured)
        keep = self.recipe.evaluation.keep
        if keep:
            self._write(drafter, self.directory / RECENT / f"step-{step}", step, measured)
            self._rotate(keep, step)

    def _rotate(self, keep: int, step: int) -> None:
        """Leave the `keep` latest up to `step`; later ones are of a run that was resumed before them."""
        found = {_step_of(path): path for path in (self.directory / RECENT).glob("step-*") if path.is_dir()}
        kept = sorted(number for number in found if 0 <= number <= step)[-keep:]
        for number, path in found.items():
            if number not in kept:
                shutil.rmtree(path)

    def _write(self, drafter: DrafterModule, directory: Path, step: int, measured: Measured) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        replace_export(drafter, directory, self.recipe, self.info, step, measured)


def _step_of(path: Path) -> int:
    """The step in a checkpoint's name; -1 for leftovers of a killed write."""
    number = path.name.removeprefix("step-")
    return int(number) if number.isdecimal() else -1
