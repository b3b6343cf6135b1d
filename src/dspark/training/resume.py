"""From which of its saved states a run goes on."""

from dataclasses import dataclass, replace
from pathlib import Path

from dspark.errors import CompatibilityError
from dspark.training.identity import check_identity, identity_of
from dspark.training.recipe import Recipe
from dspark.training.state import TrainingState, read_state
from dspark.types import TargetInfo

STATE, STABLE = "state", "stable"
"""Names of the latest state and of the last one before a cool-down, in the run's directory."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The saved state to go on from, and the directory that holds its weights."""

    directory: Path
    state: TrainingState


def resume_point(directory: Path, recipe: Recipe, info: TargetInfo) -> ResumePoint | None:
    """The latest state, or the one before the cool-down if `recipe` cools down later; None in a fresh directory.

    Raises:
        CompatibilityError: the run was made from something else, or its weights before the cool-down are gone.
    """
    latest, stable = read_state(directory / STATE), read_state(directory / STABLE)
    identity = identity_of(recipe, info)
    for state in (latest, stable):
        if state is not None and state.identity is not None:
            check_identity(state.identity, identity, directory)
    if latest is not None and not _cooled_too_early(latest, recipe):
        return ResumePoint(directory / STATE, latest)
    if latest is not None and stable is None:
        raise CompatibilityError(
            f"{directory / STATE} has been cooled down from step {latest.cooldown_start} on, but the recipe cools down "
            f"from step {recipe.optimiser.cooldown_start} on, and no state before the cool-down was kept. "
            "Restore optimiser.total_steps and cooldown_steps, or use another output directory."
        )
    if stable is None:
        return None
    kept = stable.draft_token_ids if latest is None or latest.draft_token_ids is None else latest.draft_token_ids
    return ResumePoint(directory / STABLE, replace(stable, draft_token_ids=kept))


def _cooled_too_early(state: TrainingState, recipe: Recipe) -> bool:
    return state.cooldown_start is not None and state.cooldown_start < recipe.optimiser.cooldown_start
