"""A run's log as curves, and as a picture of them; the picture needs matplotlib (the extra `plots`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from dspark.errors import DependencyError, FormatError
from dspark.figures import load_matplotlib
from dspark.training.metrics_log import MetricsLog, Row
from dspark.training.stopping import Best

DECODED, FORCED, LOSS, RATE, PLAIN = "#5e81ac", "#d08770", "#4c566a", "#a3be8c", "#bbbbbb"
POSITIONS = ("#2e3440", "#5e81ac", "#88c0d0", "#a3be8c", "#ebcb8b", "#d08770", "#bf616a", "#b48ead")
PICTURE = "curves.png"


@dataclass(frozen=True, slots=True)
class Curve:
    """Values `y` at `steps`, in order."""

    steps: tuple[int, ...]
    y: tuple[float, ...]

    @classmethod
    def of(cls, rows: Sequence[Row], value: Callable[[Row], float | None]) -> "Curve":
        """The rows where `value` is known."""
        points = [(row["step"], y) for row in rows if (y := value(row)) is not None]
        return cls(tuple(step for step, _ in points), tuple(y for _, y in points))

    def smoothed(self, span: int) -> "Curve":
        """Each value averaged with the `span` - 1 before it, fewer at the start."""
        sums = [0.0, *accumulate(self.y)]
        ends = range(1, len(sums))
        return Curve(self.steps, tuple((sums[end] - sums[max(0, end - span)]) / min(span, end) for end in ends))


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """What the log of a run tells. `cpu_hours` counts all steps up to each one; `positions` holds, for each slot, the
    conditional acceptance that evaluations measured (of decoding where there was any, else teacher-forced)."""

    loss: Curve
    held_out_loss: Curve
    tau_forced: Curve
    tau_decoded: Curve
    learning_rate: Curve
    cpu_hours: Curve
    positions: tuple[Curve, ...]
    skipped: tuple[int, ...]
    best: Best

    @classmethod
    def read(cls, directory: Path) -> "TrainingCurves":
        """The curves of the run in `directory`. Raises FormatError when it has no log, or an empty one."""
        log = MetricsLog(directory)
        rows = list(log.rows())
        if not rows:
            raise FormatError(f"{log.path} holds no steps. Expected the log of a training run (dspark train).")
        hours = accumulate((row.get("cpu_seconds", row.get("seconds", 0.0)) or 0.0) / 3600 for row in rows)
        return cls(
            loss=Curve.of(rows, lambda row: row.get("loss")),
            held_out_loss=Curve.of(rows, lambda row: _inside(row, "held_out", "loss")),
            tau_forced=Curve.of(rows, lambda row: _inside(row, "held_out", "tau")),
            tau_decoded=Curve.of(rows, lambda row: _inside(row, "on_policy", "tau")),
            learning_rate=Curve.of(rows, lambda row: row.get("learning_rate")),
            cpu_hours=Curve(tuple(row["step"] for row in rows), tuple(hours)),
            positions=_positions(rows),
            skipped=tuple(row["step"] for row in rows if row.get("skipped")),
            best=Best.of(rows),
        )

    def hours_at(self, steps: Sequence[int]) -> list[float]:
        """CPU-hours spent up to each of `steps`."""
        hours = dict(zip(self.cpu_hours.steps, self.cpu_hours.y, strict=True))
        return [hours[step] for step in steps]


def save_curves(curves: TrainingCurves, path: Path, title: str = "") -> None:
    """Draw loss, accepted length against steps and CPU-hours, acceptance by position and learning rate into a PNG."""
    figure = load_matplotlib()(figsize=(12, 6.6), layout="constrained")
    axes = figure.subplots(2, 3)
    _draw_loss(axes[0, 0], curves)
    _draw_tau(axes[0, 1], curves, list, "step")
    _draw_tau(axes[0, 2], curves, curves.hours_at, "CPU-hours")
    _draw_rate(axes[1, 0], curves)
    _draw_positions(axes[1, 1], curves)
    _draw_profile(axes[1, 2], curves)
    for each in axes.flat:
        each.grid(visible=True, linewidth=0.3)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")


def draw_run(directory: Path) -> Path | None:
    """Draw the curves of the run in `directory` there; None without matplotlib, which a finished run can do without."""
    try:
        save_curves(TrainingCurves.read(directory), directory / PICTURE, directory.resolve().name)
    except DependencyError:
        return None
    return directory / PICTURE


def _inside(row: Row, section: str, key: str) -> float | None:
    value: float | None = (row.get(section) or {}).get(key)
    return value


def _positions(rows: Sequence[Row]) -> tuple[Curve, ...]:
    section = "on_policy" if any(row.get("on_policy") for row in rows) else "held_out"
    measured = [row for row in rows if row.get(section)]
    depth = max((len(row[section]["acceptance"]) for row in measured), default=0)

    def at(place: int) -> Curve:
        return Curve.of([row for row in measured if len(row[section]["acceptance"]) > place],
                        lambda row: row[section]["acceptance"][place])  # fmt: skip

    return tuple(at(place) for place in range(depth))


def _draw_loss(axes: Any, curves: TrainingCurves) -> None:
    span = max(1, len(curves.loss.y) // 100)
    smooth = curves.loss.smoothed(span)
    axes.plot(curves.loss.steps, curves.loss.y, color=PLAIN, linewidth=0.5)
    axes.plot(smooth.steps, smooth.y, color=LOSS, label=f"training, mean of {span}" if span > 1 else "training")
    held_out = curves.held_out_loss
    axes.plot(held_out.steps, held_out.y, color=FORCED, marker="o", markersize=3, label="held-out")
    if curves.skipped:
        low = min(curves.loss.y, default=0.0)
        label = f"{len(curves.skipped)} skipped steps"
        axes.plot(curves.skipped, [low] * len(curves.skipped), "x", color="#bf616a", label=label)
    axes.set(title="loss", xlabel="step")
    axes.legend(fontsize="small", frameon=False)


def _draw_tau(axes: Any, curves: TrainingCurves, places: Callable[[Sequence[int]], list[Any]], label: str) -> None:
    for curve, color, name in (
        (curves.tau_decoded, DECODED, "decoding held-out prompts greedily"),
        (curves.tau_forced, FORCED, "teacher-forced, temperature 1"),
    ):
        if curve.y:
            axes.plot(places(curve.steps), curve.y, color=color, marker="o", markersize=3, label=name)
    if curves.best.step:
        best = places([curves.best.step])[0]
        axes.plot(best, curves.best.tau, "*", color=DECODED if curves.tau_decoded.y else FORCED, markersize=12)
        axes.annotate(
            f"best {curves.best.tau:.3f}", (best, curves.best.tau), (-8, 8), textcoords="offset points", ha="right"
        )
    axes.set(title="accepted length", xlabel=label, ylabel="tau")
    if curves.tau_forced.y or curves.tau_decoded.y:
        axes.legend(fontsize="small", frameon=False)


def _draw_rate(axes: Any, curves: TrainingCurves) -> None:
    axes.plot(curves.learning_rate.steps, curves.learning_rate.y, color=RATE)
    axes.set(title="learning rate", xlabel="step")
    axes.set_ylim(bottom=0)


def _draw_positions(axes: Any, curves: TrainingCurves) -> None:
    for place, curve in enumerate(curves.positions):
        color = POSITIONS[place % len(POSITIONS)]
        axes.plot(curve.steps, curve.y, color=color, linewidth=1, marker="o", markersize=2, label=f"{place + 1}")
    axes.set(title="acceptance if all before were accepted", xlabel="step")
    if curves.positions:
        axes.legend(title="position", fontsize="x-small", frameon=False, ncols=2)


def _draw_profile(axes: Any, curves: TrainingCurves) -> None:
    places = range(1, len(curves.positions) + 1)
    for index, color, name in ((0, PLAIN, "first evaluation"), (-1, DECODED, "last evaluation")):
        rates = [curve.y[index] for curve in curves.positions]
        axes.plot(places, rates, color=color, marker="o", markersize=4, label=name)
    axes.set(title="acceptance by position", xlabel="position", ylim=(0, 1), xticks=list(places))
    if curves.positions:
        axes.legend(fontsize="small", frameon=False)
