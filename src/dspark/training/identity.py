"""What a saved run was made from, so that it is not continued as something else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.errors import CompatibilityError
from dspark.training.recipe import Recipe
from dspark.types import TargetInfo

_CHANGEABLE = frozenset({
    "optimiser.total_steps", "optimiser.cooldown_steps", "optimiser.max_bad_steps", "blocks",
    "data.answers", "data.max_temperature", "data.max_length", "data.micro_batches",
})  # fmt: skip


def identity_of(recipe: Recipe, info: TargetInfo) -> dict[str, Any]:
    """Every setting by its dotted key, and the target's weights hash, as JSON values.

    What a continued training may change is left out: its length, its block curriculum, more or other answers, how they
    are divided, and how it is watched.
    """
    tree = recipe.model_dump(mode="json")
    start = recipe.drafter.start_from
    # Where a checkout lies is not part of a run; the name of an exported drafter alone says too little.
    tree["drafter"]["start_from"] = None if start is None else "/".join(start.parts[-2:])
    del tree["evaluation"]
    # A cosine reaches from the first step to the last: another length would have had other rates all along.
    fixed = {"optimiser.total_steps"} if recipe.optimiser.schedule == "cosine" else set()
    settings = {key: value for key, value in _flat(tree).items() if key not in _CHANGEABLE - fixed}
    return settings | {"target weights": info.weights_hash}


def check_identity(saved: Mapping[str, Any], current: Mapping[str, Any], directory: Path) -> None:
    """Raises CompatibilityError, naming every difference, unless a run that is `current` may continue `saved`."""
    differences = [f"{key} {saved[key]!r}, now {current.get(key)!r}" for key in saved if saved[key] != current.get(key)]
    if differences:
        raise CompatibilityError(
            f"{directory} was trained with {'; '.join(differences)}. Restore what it had, or use another output "
            "directory."
        )


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return flat
