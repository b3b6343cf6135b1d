"""A kill at any moment of a save leaves a whole state behind, and a state goes only into the drafter it came from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.drafters.dspark import DSpark
from dspark.errors import CompatibilityError, FormatError
from dspark.training.optimiser import Optimiser, build_optimiser
from dspark.training.recipe import OptimiserSection
from dspark.training.state import TrainingState, load_state, read_state, save_state
from tests.training.tiny import tiny_drafter

OPERATIONS = 5
"""Renames and removals of one save over an existing state: two removals, two renames, a removal."""


class Killed(BaseException):
    """Stands for a kill: nothing after it runs."""


class Killer:
    """Kills at the `moment`-th rename or removal, before or after it; a removal "before" has lost one file already."""

    def __init__(self, patch: pytest.MonkeyPatch, moment: int, after: bool) -> None:
        self.count, self.moment, self.after = 0, moment, after
        rename, rmtree = Path.rename, shutil.rmtree
        patch.setattr(Path, "rename", lambda path, to: self.act(lambda: rename(path, to), path, lambda p: None))
        patch.setattr(shutil, "rmtree", lambda path, **k: self.act(lambda: rmtree(path, **k), path, lose_a_file))

    def act(self, operation: Callable[[], Any], path: Path, halfway: Callable[[Path], None]) -> Any:
        self.count += 1
        if self.count != self.moment:
            return operation()
        if self.after:
            operation()
        else:
            halfway(path)
        raise Killed


def lose_a_file(path: Path) -> None:
    for file in sorted(path.glob("*"))[:1]:
        file.unlink()


def adamw(drafter: DSpark) -> Optimiser:
    return build_optimiser(OptimiserSection(total_steps=1), drafter)


def save(directory: Path, drafter: DSpark, step: int) -> None:
    save_state(directory, drafter, adamw(drafter), TrainingState(step, identity={}))


def killed_save(directory: Path, drafter: DSpark, step: int, moment: int, after: bool) -> int:
    """Number of renames and removals until the kill, or until the save was done."""
    with pytest.MonkeyPatch.context() as patch:
        killer = Killer(patch, moment, after)
        try:
            save(directory, drafter, step)
        except Killed:
            return killer.count
    assert killer.count < moment
    return killer.count


def readable_step(directory: Path) -> int:
    drafter = tiny_drafter(9)
    state = load_state(directory, drafter, adamw(drafter))
    assert state is not None
    return state.step


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("second", range(1, OPERATIONS + 2))
@pytest.mark.parametrize("first", range(1, OPERATIONS + 1))
def test_two_kills_in_a_row_lose_at_most_the_save_they_fell_into(
    tmp_path: Path, first: int, second: int, after: bool
) -> None:
    """The second kill falls into a save that finds the debris of the first."""
    drafter, directory = tiny_drafter(), tmp_path / "state"
    save(directory, drafter, 1)
    killed_save(directory, drafter, 2, first, after)
    killed_save(directory, drafter, 3, second, after)
    assert readable_step(directory) in {1, 2, 3}
    save(directory, drafter, 4)
    assert readable_step(directory) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_the_kills_above_cover_every_rename_and_removal(tmp_path: Path) -> None:
    save(tmp_path / "state", tiny_drafter(), 1)
    assert killed_save(tmp_path / "state", tiny_drafter(), 2, 99, False) == OPERATIONS


def test_nothing_is_lost_while_only_the_old_state_exists(tmp_path: Path) -> None:
    save(tmp_path / "state", tiny_drafter(), 7)
    (tmp_path / "state").rename(tmp_path / "state.old")
    assert readable_step(tmp_path / "state") == 7


def test_no_state_is_none_and_touches_nothing(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    before = drafter.fc.weight.clone()
    assert load_state(tmp_path / "state", drafter, adamw(drafter)) is None
    assert drafter.fc.weight.equal(before)


def test_all_that_was_saved_is_read(tmp_path: Path) -> None:
    drafter = tiny_drafter(draft_vocab_size=20)
    saved = TrainingState(5, 3, {"seed": 1}, drafter.draft_token_ids)
    save_state(tmp_path / "state", drafter, adamw(drafter), saved)
    state = read_state(tmp_path / "state")
    assert (state.step, state.cooldown_start, state.identity) == (5, 3, {"seed": 1})
    assert state.draft_token_ids.tolist() == list(range(20))


def test_a_drafter_with_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path) -> None:
    drafter = tiny_drafter(draft_vocab_size=20)
    shifted = TrainingState(5, None, {}, drafter.draft_token_ids + 1)
    save_state(tmp_path / "state", drafter, adamw(drafter), shifted)
    with pytest.raises(CompatibilityError, match="another draft vocabulary"):
        load_state(tmp_path / "state", drafter, adamw(drafter))


def test_early_states_without_identity_are_read(tmp_path: Path) -> None:
    save(tmp_path / "state", tiny_drafter(), 9)
    (tmp_path / "state" / "state.json").write_text(json.dumps({"step": 9}) + "\n")
    assert read_state(tmp_path / "state") == TrainingState(9)
    (tmp_path / "state" / "cooling.json").write_text(json.dumps({"began": 4}) + "\n")
    assert read_state(tmp_path / "state") == TrainingState(9, 4)
    assert readable_step(tmp_path / "state") == 9


@pytest.mark.parametrize(("file", "content"), [("state.json", b"[]"), ("tensors.safetensors", b"\0" * 20)])
def test_damaged_states_are_named(tmp_path: Path, file: str, content: bytes) -> None:
    save(tmp_path / "state", tiny_drafter(), 1)
    (tmp_path / "state" / file).write_bytes(content)
    with pytest.raises(FormatError, match="state is not a training state"):
        read_state(tmp_path / "state")


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_moments_survive_bit_for_bit(tmp_path: Path, kind: str) -> None:
    settings = OptimiserSection(kind=kind, total_steps=1)
    drafter, other = tiny_drafter(), tiny_drafter(4)
    optimiser, restored = build_optimiser(settings, drafter), build_optimiser(settings, other)
    for parameter in drafter.parameters():
        parameter.grad = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimiser.step()
    save_state(tmp_path / "state", drafter, optimiser, TrainingState(1))
    load_state(tmp_path / "state", other, restored)
    for mine, theirs in zip(drafter.parameters(), other.parameters(), strict=True):
        theirs.grad = mine.grad
        moments, found = optimiser.moments(mine), restored.moments(theirs)
        assert moments.keys() == found.keys() != set()
        assert all(found[key].equal(moment) for key, moment in moments.items())
    optimiser.step()
    restored.step()
    for mine, theirs in zip(drafter.parameters(), other.parameters(), strict=True):
        assert mine.equal(theirs)
