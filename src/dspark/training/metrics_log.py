"""`metrics.jsonl`: one JSON object per step of a run, and what can be read from it afterwards.

A resumed run repeats the steps after its last saved state. Their first rows move to `metrics.superseded.jsonl`, so that
the log holds every step once and its curves have no jumps.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dspark.disk import naming
from dspark.errors import FormatError

LOG, SUPERSEDED = "metrics.jsonl", "metrics.superseded.jsonl"

Row = Mapping[str, Any]


class MetricsLog:
    """The log in a run's directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOG
        self._superseded = directory / SUPERSEDED

    def rows(self) -> Iterator[Row]:
        """All rows, in order; a last line that a kill cut in half is left out.

        Raises:
            FormatError: a line is no JSON object with a step.
        """
        for number, line in enumerate(self._lines(), 1):
            if line.endswith("\n"):
                yield _row(line, self.path, number)

    def append(self, row: Row) -> None:
        """Add the row of a step. Numbers that JSON lacks become null."""
        with naming(self.path), self.path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(finite(row), allow_nan=False) + "\n")

    def keep_until(self, step: int) -> None:
        """Before the run goes on behind `step`: put rows of later steps aside, and half a line away."""
        lines = self._lines()
        kept: list[str] = []
        later: list[str] = []
        for number, line in enumerate(lines, 1):
            if line.endswith("\n"):
                (kept if _row(line, self.path, number)["step"] <= step else later).append(line)
        if len(kept) == len(lines):
            return
        with naming(self._superseded), self._superseded.open("a", encoding="utf-8") as file:
            file.writelines(later)
        partial = self.path.with_name(LOG + ".partial")
        with naming(partial):
            partial.write_text("".join(kept), encoding="utf-8")
        partial.replace(self.path)

    def _lines(self) -> list[str]:
        if not self.path.is_file():
            return []
        with self.path.open(encoding="utf-8") as log:
            return log.readlines()


def finite(value: Any) -> Any:
    """`value` with None for every NaN and infinity in it."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _row(line: str, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}, line {number} is not JSON: {error}. Remove the line.") from error
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise FormatError(f"{path}, line {number} has no step. Expected the log of a training run; remove the line.")
    return row
