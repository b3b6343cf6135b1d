"""Dashboards get the numbers of the log, under stable names, and say what to install where they are missing."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dspark.errors import DependencyError
from dspark.training.on_policy import OnPolicyResult
from dspark.training.progress import Progress, scalars
from dspark.training.step import StepResult
from dspark.training.stopping import BadSteps
from dspark.training.watchers import open_watchers

RESULT = StepResult(2.5, 1.0, 0.5, 0.25, torch.tensor([0.5, 0.25]))


class Writer:
    """Stands for tensorboard's SummaryWriter."""

    def __init__(self, directory: str, purge_step: int) -> None:
        self.directory, self.purge_step, self.flushed = directory, purge_step, 0
        self.scalars: list[tuple[str, float, int]] = []
        WRITERS.append(self)

    def add_scalar(self, name: str, number: float, step: int) -> None:
        self.scalars.append((name, number, step))

    def flush(self) -> None:
        self.flushed += 1


WRITERS: list[Writer] = []


def progress(step: int, decoded: bool = False) -> Progress:
    on_policy = OnPolicyResult(1.9, (0.6, 0.4), 10, 2) if decoded else None
    return Progress(step, 10, RESULT, RESULT if decoded else None, 1.0, on_policy, 2.0, 1e-3)


def test_a_step_as_numbers() -> None:
    found = scalars(progress(7, decoded=True).row())
    assert found["loss"] == 2.5
    assert found["acceptance/2"] == 0.25
    assert found["on_policy/tau"] == 1.9
    assert found["on_policy/acceptance/1"] == 0.6
    assert found["held_out/tau"] == pytest.approx(1.625)
    assert found["learning_rate"] == 1e-3
    assert "step" not in found


def test_a_skipped_step_has_no_loss() -> None:
    skipped = Progress(3, 10, None, None, 1.0, bad=BadSteps(1, 1), skipped="Loss nan")
    assert scalars(skipped.row()) == {"seconds": 1.0, "cpu_seconds": 0.0, "learning_rate": 0.0}
    assert skipped.row()["skipped"] == "Loss nan"


def test_tensorboard_events_of_repeated_steps_are_purged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    (watch,) = open_watchers(["tensorboard", "tensorboard"], tmp_path)
    watch(progress(4))
    watch(progress(5, decoded=True))
    (writer,) = WRITERS
    assert (writer.directory, writer.purge_step, writer.flushed) == (str(tmp_path / "tensorboard"), 4, 1)
    assert ("loss", 2.5, 4) in writer.scalars
    assert ("on_policy/tau", 1.9, 5) in writer.scalars


def test_trackio_goes_on_in_the_run_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    module = SimpleNamespace(
        init=lambda **named: calls.append(named), log=lambda numbers, step: calls.append((numbers["loss"], step))
    )
    monkeypatch.setitem(sys.modules, "trackio", module)
    (watch,) = open_watchers(["trackio"], tmp_path / "mine")
    watch(progress(4))
    watch(progress(5))
    assert calls == [{"project": "dspark", "name": "mine", "resume": "allow"}, (2.5, 4), (2.5, 5)]


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("trackio", "trackio")])
def test_a_missing_package_is_named_before_the_run(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DependencyError, match=rf"{name} is not installed; pip install 'dspark\[{name}\]'"):
        open_watchers([name], tmp_path)
