"""Dashboards that may watch a run beside its own log. Each package is optional and imported when it is asked for."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dspark.errors import DependencyError
from dspark.training.progress import Progress, Watcher, scalars


def open_watchers(dashboards: Sequence[str], directory: Path) -> list[Watcher]:
    """A watcher for each of `dashboards` (tensorboard, trackio), for the run in `directory`.

    Raises:
        DependencyError: a package is not installed.
    """
    return [_OPENERS[dashboard](directory) for dashboard in dict.fromkeys(dashboards)]


class TensorBoard:
    """Event files under `tensorboard/` of the run. On resumption, events of repeated steps are purged."""

    def __init__(self, directory: Path) -> None:
        self._new_writer = _load("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._directory = directory / "tensorboard"
        self._writer: Any = None

    def __call__(self, progress: Progress) -> None:
        """Add the step's numbers."""
        if self._writer is None:
            self._writer = self._new_writer(str(self._directory), purge_step=progress.step)
        for name, number in scalars(progress.row()).items():
            self._writer.add_scalar(name, number, progress.step)
        if progress.held_out is not None or progress.on_policy is not None:
            self._writer.flush()


class Trackio:
    """A trackio run named as the directory, in the project `dspark`; a resumed run goes on in it."""

    def __init__(self, directory: Path) -> None:
        self._trackio = _load("trackio", "trackio")
        self._name = directory.resolve().name
        self._begun = False

    def __call__(self, progress: Progress) -> None:
        """Log the step's numbers."""
        if not self._begun:
            self._trackio.init(project="dspark", name=self._name, resume="allow")
            self._begun = True
        numbers: Mapping[str, float] = scalars(progress.row())
        self._trackio.log(dict(numbers), step=progress.step)


_OPENERS: Mapping[str, Callable[[Path], Watcher]] = {"tensorboard": TensorBoard, "trackio": Trackio}


def _load(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise DependencyError(f"{extra} is not installed; pip install 'dspark[{extra}]'") from error
