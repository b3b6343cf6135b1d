"""What a watcher is told after each step, and what the log keeps of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dspark.training.on_policy import OnPolicyResult
from dspark.training.step import StepResult
from dspark.training.stopping import BadSteps, Best


@dataclass(frozen=True, slots=True)
class Progress:
    """A step that is done. `held_out` and `on_policy` are set on the steps that measured them.

    `result` is None where the step was not finite and changed nothing, `skipped` then says why. `seconds` are those of
    the clock, `cpu_seconds` of all threads of the process, both with the step's evaluation.
    """

    step: int
    total_steps: int
    result: StepResult | None
    held_out: StepResult | None
    seconds: float
    on_policy: OnPolicyResult | None = None
    cpu_seconds: float = 0.0
    learning_rate: float = 0.0
    best: Best = field(default_factory=Best)
    bad: BadSteps = field(default_factory=BadSteps)
    skipped: str = ""

    def row(self) -> dict[str, Any]:
        """The step as the log keeps it."""
        row: dict[str, Any] = {
            "step": self.step,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "learning_rate": self.learning_rate,
        }
        row |= {"skipped": self.skipped} if self.result is None else self.result.as_json()
        for name, measured in (("held_out", self.held_out), ("on_policy", self.on_policy)):
            if measured is not None:
                row[name] = measured.as_json()
        return row


Watcher = Callable[[Progress], None]


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """A row's numbers by name, as dashboards want them: `held_out/tau`, `acceptance/1` (positions count from 1)."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": number for key, number in scalars(value).items()}
        elif isinstance(value, list):
            found |= {f"{name}/{place}": number for place, number in enumerate(value, 1) if number is not None}
        elif isinstance(value, int | float) and name not in ("step", "time"):
            found[name] = value
    return found
