"""Training state on disk: weights, optimiser moments and where the run stands, written so that a kill loses nothing.

Every random choice of a run is a function of (seed, step), so this is the whole state. No pickle. A lone process writes
one file of tensors, several write their shards; any number of processes reads either.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspark.disk import naming
from dspark.drafters.drafter_module import DrafterModule
from dspark.errors import CompatibilityError, FormatError
from dspark.training.optimiser import Optimiser
from dspark.training.shards import PATTERN, load_shards, save_shards
from dspark.training.world import ALONE, World

_BUFFER = "buffer."
TENSORS, HEADER, VOCABULARY = "tensors.safetensors", "state.json", "draft_token_ids"
FILES = "files"
"""The key of a header that names all files of tensors; early states have `TENSORS` alone, and no such key."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Where a saved run stands, after `step` optimiser steps.

    `cooldown_start` is the first step of the cool-down that has touched the weights, None if none has. `identity` is
    what the run was made from (see `training.identity`), None where unknown: states of early versions lack it.
    `draft_token_ids` [V_draft] is the pruned draft vocabulary. `skipped` of the steps changed nothing, the last
    `skipped_in_a_row` of them among these.
    """

    step: int
    cooldown_start: int | None = None
    identity: Mapping[str, Any] | None = None
    draft_token_ids: Tensor | None = None
    skipped: int = 0
    skipped_in_a_row: int = 0

    @property
    def updates(self) -> int:
        """How often the weights were updated: the optimiser's clock."""
        return self.step - self.skipped


def save_state(
    directory: Path, drafter: DrafterModule, optimiser: Optimiser, state: TrainingState, world: World = ALONE
) -> None:
    """Replace the state in `directory`; a kill at any moment leaves the old one or the new one to be found.

    All processes of `world` call this together; the first of them moves directories.
    """
    partial = directory.with_name(directory.name + ".partial")
    world.wait()
    if world.leads:
        _make_room(directory, partial)
    world.wait()
    tensors = _tensors(drafter, optimiser, state)
    with naming(directory):
        if world.group is None:
            save_file(tensors, partial / TENSORS)
        else:
            save_shards(partial, tensors, world)
    world.wait()
    if world.leads:
        with naming(directory):
            _write_header(partial, state)
        _swap(directory, partial)
    world.wait()


def _make_room(directory: Path, partial: Path) -> None:
    old = _old(directory)
    if _surviving(directory) == old:
        old.rename(directory)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _write_header(partial: Path, state: TrainingState) -> None:
    header = {
        "step": state.step,
        "skipped": state.skipped,
        "skipped_in_a_row": state.skipped_in_a_row,
        "cooldown_start": state.cooldown_start,
        "identity": state.identity,
        FILES: sorted(path.name for path in partial.glob(PATTERN)),
    }
    (partial / HEADER).write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")


def _swap(directory: Path, partial: Path) -> None:
    old = _old(directory)
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def read_state(directory: Path) -> TrainingState | None:
    """Where the state in `directory` stands, without its weights; None if there is no state yet.

    Raises:
        FormatError: there is something else, or a damaged state.
    """
    directory = _surviving(directory)
    if not directory.exists():
        return None
    try:
        header = json.loads((directory / HEADER).read_text(encoding="utf-8"))
        step, identity = int(header["step"]), header.get("identity")
        kept = _stored_vocabulary([directory / name for name in header.get(FILES, [TENSORS])])
        began = header.get("cooldown_start") if "identity" in header else _early_cooldown_start(directory)
        skipped, in_a_row = int(header.get("skipped", 0)), int(header.get("skipped_in_a_row", 0))
        return TrainingState(step, began, identity, kept, skipped, in_a_row)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise FormatError(f"{directory} is not a training state: {error}. Remove it to start afresh.") from error


def _stored_vocabulary(files: Sequence[Path]) -> Tensor | None:
    """The draft vocabulary, which one of the files may hold. Opens them all, so that none is missing or cut short."""
    kept = None
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            if VOCABULARY in tensors.keys():  # noqa: SIM118
                kept = tensors.get_tensor(VOCABULARY)
    return kept


def load_state(
    directory: Path, drafter: DrafterModule, optimiser: Optimiser, world: World = ALONE
) -> TrainingState | None:
    """Restore `drafter` and `optimiser` in place, bit for bit; None, and nothing done, if there is no state yet.

    All processes of `world` call this together; it need not be as large as the one that saved.

    Raises:
        CompatibilityError: the drafter has other parameters, or another draft vocabulary.
        FormatError: there is no readable state in `directory`.
    """
    state = read_state(directory)
    if state is None:
        return None
    _check_vocabulary(directory, drafter, state)
    tensors = _load_tensors(_surviving(directory), drafter, world)
    tensors.pop(VOCABULARY, None)
    for name, parameter in drafter.named_parameters():
        if parameter.requires_grad:
            _restore(name, parameter, tensors, optimiser, state.updates, directory)
    for name, buffer in _buffers(drafter).items():
        buffer.copy_(_taken(f"{_BUFFER}{name}", buffer, tensors, directory))
    if tensors:
        raise CompatibilityError(
            f"{directory} holds {sorted(tensors)[:3]}..., which this recipe's drafter does not have. "
            "The recipe has changed: use another output directory."
        )
    return state


def _load_tensors(directory: Path, drafter: DrafterModule, world: World) -> dict[str, Tensor]:
    file = directory / TENSORS
    if world.group is None and file.is_file():
        return load_file(file)
    return load_shards(directory, dict(drafter.named_parameters()) | _buffers(drafter), world)


def _old(directory: Path) -> Path:
    return directory.with_name(directory.name + ".old")


def _surviving(directory: Path) -> Path:
    """Where the state is: in `.old` if a kill fell between the two renames of `save_state`. Readers move nothing."""
    old = _old(directory)
    return old if old.exists() and not directory.exists() else directory


def _early_cooldown_start(directory: Path) -> int | None:
    """Early versions kept this in a file beside the header, and no identity."""
    path = directory / "cooling.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["began"]) if path.exists() else None


def _tensors(drafter: DrafterModule, optimiser: Optimiser, state: TrainingState) -> dict[str, Tensor]:
    tensors = {} if state.draft_token_ids is None else {VOCABULARY: state.draft_token_ids.contiguous()}
    for name, parameter in drafter.named_parameters():
        if parameter.requires_grad:
            tensors[f"parameter.{name}"] = parameter.detach().contiguous()
            tensors |= {f"{key}.{name}": moment for key, moment in optimiser.moments(parameter).items()}
    return tensors | {f"{_BUFFER}{name}": buffer.contiguous() for name, buffer in _buffers(drafter).items()}


def _buffers(drafter: DrafterModule) -> dict[str, Tensor]:
    """What a drafter learns without gradients: the biases that balance experts."""
    parameters = dict(drafter.named_parameters())
    return {name: tensor for name, tensor in drafter.state_dict().items() if name not in parameters}


def _check_vocabulary(directory: Path, drafter: DrafterModule, state: TrainingState) -> None:
    kept, own = state.draft_token_ids, drafter.draft_token_ids
    if kept is not None and (own is None or not own.equal(kept)):
        raise CompatibilityError(
            f"{directory} was trained with another draft vocabulary of {len(kept)} tokens than the drafter has. "
            "Build the drafter with the state's draft_token_ids, or use another output directory."
        )


def _restore(
    name: str, parameter: Tensor, tensors: dict[str, Tensor], optimiser: Optimiser, updates: int, directory: Path
) -> None:
    parameter.data.copy_(_taken(f"parameter.{name}", parameter, tensors, directory))
    keys = [key for key in tensors if key.partition(".")[2] == name]
    if keys:
        optimiser.restore(parameter, {key.partition(".")[0]: tensors.pop(key) for key in keys}, updates)


def _taken(key: str, like: Tensor, tensors: dict[str, Tensor], directory: Path) -> Tensor:
    """Remove and return the saved tensor `key`, which must look like `like`."""
    saved = tensors.pop(key, None)
    if saved is None or saved.shape != like.shape or saved.dtype != like.dtype:
        found = "nothing" if saved is None else f"{tuple(saved.shape)} {saved.dtype}"
        name = key.partition(".")[2]
        raise CompatibilityError(
            f"{directory}: {name} should be {tuple(like.shape)} {like.dtype}, found {found}. "
            "The recipe has changed: use another output directory."
        )
    return saved
