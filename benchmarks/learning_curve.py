"""Accepted length against CPU-hours, of runs as their logs tell, and what more training would buy.

    python -m benchmarks.learning_curve --curve shipped=runs/first,runs/second --curve adamw=runs/adamw \
        --json docs/results/learning_curve.json --plot docs/results/learning_curve.png --doc docs/training.md

A curve is a run, or several that start from one another (`drafter.start_from`), whose hours then add up; `+H` before
them stands for H hours of a training whose log is gone. Its values are the evaluations in `metrics.jsonl`: of decoding
held-out prompts where all its runs have them, else teacher-forced. A power law is fitted to the evaluations at the full
learning rate (`power_law`): a cool-down lifts a curve once, at the end of however long a run, and says nothing about
length. Gains are differences to the end of the fit. As a check, the same is asked at half of the hours, and held
against what came.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.markers import rewrite
from benchmarks.power_law import PowerLaws
from dspark.errors import FormatError
from dspark.figures import load_matplotlib
from dspark.training.metrics_log import MetricsLog, Row
from dspark.training.resume import STABLE
from dspark.training.state import read_state

FACTORS = (2.0, 4.0)
MEASURES = {"on_policy": "decoding held-out prompts, T = 0", "held_out": "teacher-forced on held-out answers, T = 1"}
COLOURS = ("#5e81ac", "#d08770", "#a3be8c", "#b48ead", "#4c566a")


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation after `hours` of processor time and `step` steps of all runs so far; whether the rate was full."""

    hours: float
    step: int
    tau: float
    full_rate: bool


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """All evaluations of a chain of runs, measured alike."""

    name: str
    measure: str
    points: tuple[Point, ...]

    @classmethod
    def read(cls, name: str, directories: Sequence[Path], before: float = 0.0) -> "LearningCurve":
        """The logs in `directories`, after `before` hours. Raises FormatError when a run has no evaluation."""
        logs = [_rows(directory) for directory in directories]
        measure = next((key for key in MEASURES if all(any(row.get(key) for row in log) for log in logs)), None)
        if measure is None:
            raise FormatError(f"{name}: its runs have no evaluation in common ({', '.join(map(str, directories))}).")
        return cls(name, measure, tuple(_points(logs, measure, before)))

    @property
    def rising(self) -> list[Point]:
        """The evaluations at the full rate."""
        return [point for point in self.points if point.full_rate]


def _rows(directory: Path) -> list[Row]:
    """The log of a run, with `full_rate` in each row. Early logs do not tell the rate; a cool-down leaves `stable/`."""
    rows = list(MetricsLog(directory).rows())
    full = 0.99 * max((row.get("learning_rate") or 0.0 for row in rows), default=0.0)
    stable = read_state(directory / STABLE)
    uncooled = math.inf if stable is None else stable.step
    return [
        {**row, "full_rate": row.get("learning_rate", full) >= full if full else row["step"] <= uncooled}
        for row in rows
    ]


def _points(logs: Sequence[Sequence[Row]], measure: str, hours: float) -> Iterator[Point]:
    steps = 0
    for log in logs:
        for row in log:
            hours += (row.get("cpu_seconds") or row.get("seconds") or 0.0) / 3600
            if row.get(measure):
                yield Point(hours, steps + row["step"], row[measure]["tau"], row["full_rate"])
        steps += log[-1]["step"]


def outlook(curve: LearningCurve) -> dict[str, Any] | None:
    """What more training would buy, and how such a forecast would have fared at half of the hours; None: too short."""
    points = curve.rising
    try:
        laws = fitted(points)
    except ValueError:
        return None
    half = [point for point in points if point.hours <= points[-1].hours / 2]
    return {
        "hours": points[-1].hours,
        "tau": float(laws.level[0]),
        "exponent": float(laws.exponent[0]),
        "exponent_ci95": [float(q) for q in np.quantile(laws.exponent[1:], (0.025, 0.975))],
        "gains": {f"{factor:g}": _gain(laws, factor) for factor in FACTORS},
        "check": _check(half, points[-1], laws),
    }


def fitted(points: Sequence[Point]) -> PowerLaws:
    """Raises ValueError for too few."""
    return PowerLaws.fit([point.hours for point in points], [point.tau for point in points])


def _gain(laws: PowerLaws, factor: float) -> dict[str, Any]:
    gain, interval = laws.gain(factor)
    return {"gain": gain, "ci95": list(interval)}


def _check(half: Sequence[Point], last: Point, laws: PowerLaws) -> dict[str, Any] | None:
    """Forecast of the first half for the end, and what the whole fit says that it came to."""
    try:
        early = fitted(half)
    except ValueError:
        return None
    forecast, came = _gain(early, last.hours / half[-1].hours), float(laws.level[0] - early.level[0])
    return {**forecast, "came": came, "held": forecast["ci95"][0] <= came <= forecast["ci95"][1]}


def as_json(curve: LearningCurve, found: dict[str, Any] | None) -> dict[str, Any]:
    """One curve of the report."""
    points = [[round(p.hours, 4), p.step, round(p.tau, 4), p.full_rate] for p in curve.points]
    columns = ["cpu_hours", "step", "tau", "full_rate"]
    return {"measured": MEASURES[curve.measure], "columns": columns, "points": points, "outlook": found}


def table(curves: dict[str, dict[str, Any]]) -> str:
    """First and last evaluation, and the gain from two and four times the hours at the full rate."""
    header = ["run", "CPU-hours", "tau, first to last", "measured", *(f"{f:g} x the hours" for f in FACTORS), "check"]
    lines = [header, ["---"] * len(header)]
    for name, curve in curves.items():
        first, last = curve["points"][0], curve["points"][-1]
        told = f"{first[2]:.2f} to {last[2]:.2f}", curve["measured"]
        lines.append([name, f"{last[0]:.1f}", *told, *_outlook_cells(curve["outlook"])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _outlook_cells(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["too few evaluations"] * len(FACTORS) + [""]
    check = found["check"]
    told = "" if check is None else f"{_signed(check)}, came {check['came']:+.2f}"
    return [*(_signed(found["gains"][f"{factor:g}"]) for factor in FACTORS), told]


def _signed(gain: dict[str, Any]) -> str:
    low, high = gain["ci95"]
    return f"{gain['gain']:+.2f} ({low:+.2f} to {high:+.2f})"


def save_figure(path: Path, curves: Sequence[LearningCurve]) -> None:
    """Evaluations over CPU-hours on a logarithmic axis, laws with their bands up to the largest factor."""
    figure = load_matplotlib()(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    for curve, colour in zip(curves, COLOURS * len(curves), strict=False):
        hours, tau = [p.hours for p in curve.points], [p.tau for p in curve.points]
        axes.plot(hours, tau, color=colour, linewidth=0.5)
        for full, face in ((True, colour), (False, "none")):
            own = [p for p in curve.points if p.full_rate is full]
            label = f"{curve.name} ({MEASURES[curve.measure]})" if full else None
            style = {"s": 14, "edgecolors": colour, "facecolors": face}
            axes.scatter([p.hours for p in own], [p.tau for p in own], label=label, **style)
        _draw_law(axes, curve, colour)
    axes.set(
        xlabel="CPU-hours (open circles: while the rate falls or rises)", ylabel="accepted length tau", xscale="log"
    )
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize="small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def _draw_law(axes: Any, curve: LearningCurve, colour: str) -> None:
    points = curve.rising
    try:
        laws = fitted(points)
    except ValueError:
        return
    ratios = np.geomspace(points[0].hours / points[-1].hours, max(FACTORS), 80)
    values = laws.at(ratios)
    low, high = np.quantile(values[1:], (0.025, 0.975), axis=0)
    axes.plot(ratios * points[-1].hours, values[0], color=colour, linestyle="--", linewidth=1)
    axes.fill_between(ratios * points[-1].hours, low, high, color=colour, alpha=0.15, linewidth=0)


def main() -> None:
    """Read, fit, write, print."""
    args = arguments()
    load_matplotlib()
    curves = [LearningCurve.read(*each) for each in args.curve]
    report = {curve.name: as_json(curve, outlook(curve)) for curve in curves}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"curves": report}) + "\n", encoding="utf-8")
    save_figure(args.plot, curves)
    print(table(report))
    if args.doc is not None:
        rewrite(args.doc, "learning curve", table(report))


def chain(text: str) -> tuple[str, tuple[Path, ...], float]:
    """NAME=[+HOURS,]DIR[,DIR...]: name, directories, hours."""
    name, _, rest = text.partition("=")
    parts = rest.split(",")
    hours = float(parts.pop(0)) if parts[0].startswith("+") else 0.0
    return name, tuple(Path(part) for part in parts), hours


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--curve", action="append", type=chain, required=True, metavar="NAME=[+HOURS,]DIR[,DIR...]",
        help="runs of `dspark train`, each from the one before",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, default=Path("docs/results/learning_curve.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/results/learning_curve.png"), metavar="PNG")
    parser.add_argument("--doc", type=Path, help="rewrite the table between the markers of this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
