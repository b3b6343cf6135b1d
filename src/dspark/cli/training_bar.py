"""The line that a training shows: how far, how fast, how long still, the loss, and the accepted length."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dspark.cli import console

if TYPE_CHECKING:
    from dspark.training.progress import Progress


@contextmanager
def training_bar(quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """A bar on stderr that is told every step."""
    with console.progress("Training", 1, quiet, unit="step") as bar:
        line = TrainingLine()
        begun = False

        def show(progress: "Progress") -> None:
            nonlocal begun
            if not begun:
                bar.begin(progress.step - 1, progress.total_steps)
                begun = True
            bar.show(progress.step, line.after(progress))

        yield show


class TrainingLine:
    """What is said beside the bar. Figures that not every step measures stay until they are measured again."""

    def __init__(self) -> None:
        self._loss = "loss not finite"
        self._measured = ""

    def after(self, progress: "Progress") -> str:
        """The remark after a step."""
        if progress.result is not None:
            self._loss = f"loss {progress.result.loss:.3f}"
        if progress.held_out is not None or progress.on_policy is not None:
            self._measured = self._evaluated(progress)
        bad = f"{progress.bad.total} bad steps" if progress.bad.total else ""
        return ", ".join(part for part in (self._loss, self._measured, bad) if part)

    @staticmethod
    def _evaluated(progress: "Progress") -> str:
        parts = []
        if progress.on_policy is not None:
            parts.append(f"tau {progress.on_policy.tau:.3f} decoding")
        if progress.held_out is not None:
            parts.append(f"{progress.held_out.tau:.3f} teacher-forced")
        if progress.best.step:
            parts.append(f"best {progress.best.tau:.3f} at {progress.best.step}")
        return ", ".join(parts)
