"""When a run ends before its last step: nothing gets better, or steps come out as no numbers."""

from collections.abc import Iterable
from dataclasses import dataclass

from dspark.training.metrics_log import Row
from dspark.training.step import DivergenceError


@dataclass(frozen=True, slots=True)
class Best:
    """The longest accepted length so far: `tau` after `step`, and how many evaluations came `since` without more."""

    tau: float = float("-inf")
    step: int = 0
    since: int = 0

    def after(self, step: int, tau: float) -> "Best":
        """This after an evaluation. A tau that is no number counts as no better."""
        return Best(tau, step) if tau > self.tau else Best(self.tau, self.step, self.since + 1)

    def exhausted(self, patience: int | None) -> bool:
        """Whether `patience` evaluations in a row were no better."""
        return patience is not None and self.since >= patience

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Best":
        """The best of a log."""
        best = cls()
        for row in rows:
            tau = accepted_length(row)
            best = best if tau is None else best.after(row["step"], tau)
        return best


def accepted_length(row: Row) -> float | None:
    """Tau of the evaluation in a row of the log: on-policy where it was measured, else teacher-forced; or None."""
    measured = row.get("on_policy") or row.get("held_out")
    return None if not measured else measured["tau"]


@dataclass(frozen=True, slots=True)
class BadSteps:
    """Steps whose loss or gradient was not finite: `total` of them, `in_a_row` up to now. They changed no weight."""

    total: int = 0
    in_a_row: int = 0

    def good(self) -> "BadSteps":
        """This after a step that was finite."""
        return BadSteps(self.total)

    def bad(self) -> "BadSteps":
        """This after one that was not."""
        return BadSteps(self.total + 1, self.in_a_row + 1)

    def check(self, limit: int, reason: str) -> None:
        """Raises DivergenceError when there are `limit` bad steps in a row, the last one for `reason`."""
        if self.in_a_row >= limit:
            raise DivergenceError(f"{self.in_a_row} bad steps in a row, {self.total} in all. {reason}")
