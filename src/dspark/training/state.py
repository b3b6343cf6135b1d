"""Training state on disk: parameters, AdamW moments and the step number, written so that a kill loses nothing.

Every random choice of a run is a function of (seed, step), so these tensors are the whole state. No pickle.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from safetensors.torch import load_file, save_file
from torch import Tensor, nn, optim

from dspark.errors import CompatibilityError, FormatError


def save_state(
    directory: Path,
    module: nn.Module,
    optimiser: optim.AdamW,
    step: int,
    notes: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> None:
    """Replace `directory` by the state after `step` optimiser steps; a crash leaves the old state or the new one.

    `notes` are further small JSON files by name.
    """
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors: dict[str, Tensor] = {}
    for name, parameter in _trained(module):
        tensors[f"parameter.{name}"] = parameter.detach().contiguous()
        for key in ("exp_avg", "exp_avg_sq"):
            if parameter in optimiser.state:
                tensors[f"{key}.{name}"] = optimiser.state[parameter][key]
    save_file(tensors, partial / "tensors.safetensors")
    for name, note in ({**notes, "state.json": {"step": step}}).items():
        (partial / name).write_text(json.dumps(note) + "\n")
    old = directory.with_name(directory.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def load_state(directory: Path, module: nn.Module, optimiser: optim.AdamW) -> int:
    """Restore `module` and `optimiser` in place, bit for bit, and return the step; 0 if there is no state yet."""
    directory = _surviving(directory)
    if not directory.exists():
        return 0
    try:
        tensors = load_file(directory / "tensors.safetensors")
        step = int(json.loads((directory / "state.json").read_text())["step"])
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(f"{directory} is not a training state: {error}. Remove it to start afresh.") from error
    for name, parameter in _trained(module):
        _restore(name, parameter, tensors, optimiser, step, directory)
    if tensors:
        raise CompatibilityError(
            f"{directory} holds {sorted(tensors)[:3]}..., which this recipe's drafter does not have."
        )
    return step


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def _surviving(directory: Path) -> Path:
    """The state itself, or the previous one if a crash fell between the two renames of `save_state`."""
    old = directory.with_name(directory.name + ".old")
    return old if not directory.exists() and old.exists() else directory


def _restore(
    name: str, parameter: nn.Parameter, tensors: dict[str, Tensor], optimiser: optim.AdamW, step: int, directory: Path
) -> None:
    saved = tensors.pop(f"parameter.{name}", None)
    if saved is None or saved.shape != parameter.shape or saved.dtype != parameter.dtype:
        found = "nothing" if saved is None else f"{tuple(saved.shape)} {saved.dtype}"
        raise CompatibilityError(
            f"{directory}: {name} should be {tuple(parameter.shape)} {parameter.dtype}, found {found}. "
            "The recipe has changed: use another output directory."
        )
    parameter.data.copy_(saved)
    moments = {key: tensors.pop(f"{key}.{name}", None) for key in ("exp_avg", "exp_avg_sq")}
    if all(moment is not None for moment in moments.values()):
        optimiser.state[parameter] = {"step": parameter.new_tensor(float(step)), **moments}
