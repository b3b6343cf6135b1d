"""What a grid of drafters is published as: entries, a table and a figure. `embedded_drafters` makes the figures."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspark.figures import load_matplotlib
from dspark.training.metrics_log import MetricsLog

Json = Mapping[str, Any]
TEMPERATURES = (0.0, 1.0)
COLOURS, SHIFTS = ("#5e81ac", "#d08770"), (-0.12, 0.12)
"""Of each temperature: its colour, and how far its points stand beside the others'."""


def entry(name: str, report: Json, rows: Sequence[Json]) -> dict[str, Any]:
    """One drafter: accepted lengths at T = 0, those at T = 1 beside them, and what `dspark train` reported of it."""
    greedy, sampled = (
        next(row for row in rows if row["drafter"] == name and row["temperature"] == t) for t in TEMPERATURES
    )
    return {
        **accepted_lengths(greedy),
        "at_temperature_1": accepted_lengths(sampled),
        "steps": report["step"],
        "parameters": report["parameters"],
    }


def accepted_lengths(row: Json) -> dict[str, Any]:
    """Mean, interval and every set of one evaluation."""
    return {
        "mean_tau": row["mean_tau"],
        "ci95": row["mean_tau_ci95"],
        "tau": {name: one["tau"] for name, one in row["sets"].items()},
    }


def training(directory: Path) -> dict[str, Any]:
    """What the log of a run tells: seconds of all steps, evaluations included, and each evaluation's held-out figures.

    `held_out` is teacher-forced at temperature 1, on answers that were not trained on.
    """
    rows = list(MetricsLog(directory).rows())
    measured = [(row["step"], row["held_out"]) for row in rows if row.get("held_out")]
    return {
        "training_seconds": sum(row.get("seconds") or 0.0 for row in rows),
        "held_out": [{"step": step, "tau": one["tau"], "loss": one["loss"]} for step, one in measured],
    }


def published(settings: Iterable[str]) -> list[str]:
    """KEY=VALUE as results may tell them: of a path its last part alone."""
    parts = (setting.partition("=") for setting in settings)
    return [f"{key}={Path(value).name if _is_path(value) else value}" for key, _, value in parts]


def _is_path(value: str) -> bool:
    return "/" in value and not value.startswith(("[", "{"))


def table(drafters: Mapping[str, Json], quotients: Sequence[Json] = ()) -> str:
    """Mean tau with half its 95 % interval at both temperatures, and how much longer that of the first drafter is."""
    first = next(iter(drafters))
    over = [f"{first} / it, T = {t:g}" for t in TEMPERATURES] if quotients else []
    header = ["drafter", "steps", "minutes", "parameters", "T = 0", "T = 1", *over]
    lines = [header, ["---"] * len(header)]
    for name, one in drafters.items():
        taus = [half_interval(one), half_interval(one["at_temperature_1"])]
        size = [str(one["steps"]), f"{one['training_seconds'] / 60:.0f}", f"{one['parameters'] / 1e6:.1f} M"]
        lines.append([name, *size, *taus, *(quotient(quotients, name, t) for t in TEMPERATURES[: len(over)])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def half_interval(figures: Json) -> str:
    """Mean tau with half the width of its 95 % interval."""
    low, high = figures["ci95"]
    return f"{figures['mean_tau']:.2f} ± {(high - low) / 2:.2f}"


def quotient(quotients: Sequence[Json], over: str, temperature: float) -> str:
    """The first drafter's mean over that of `over`, with its interval; empty for the first itself."""
    for one in quotients:
        if one["over"] == over and one["temperature"] == temperature:
            low, high = one["ci95"]
            return f"{one['quotient']:.2f} ({low:.2f} to {high:.2f})"
    return ""


def save_figure(path: Path, drafters: Mapping[str, Json]) -> None:
    """Left: mean tau by drafter with intervals, at both temperatures. Right: held-out tau while they trained."""
    figure = load_matplotlib()(figsize=(11, 0.42 * len(drafters) + 2.2), layout="constrained")
    lengths, trend = figure.subplots(1, 2)
    places = range(len(drafters))
    for colour, t, shift, figures in zip(COLOURS, TEMPERATURES, SHIFTS, _by_temperature(drafters), strict=True):
        taus = [one["mean_tau"] for one in figures]
        reach = [[abs(one["ci95"][side] - one["mean_tau"]) for one in figures] for side in (0, 1)]
        style = {"fmt": "o", "markersize": 5, "capsize": 3, "color": colour}
        lengths.errorbar(taus, [place + shift for place in places], xerr=reach, label=f"T = {t:g}", **style)
    lengths.set(yticks=list(places), yticklabels=list(drafters), xlabel="tau, mean over the sets", title="decoding")
    lengths.set_ylim(len(drafters) - 0.5, -0.5)
    for name, one in drafters.items():
        points = one["held_out"]
        style = {"marker": "o", "markersize": 3, "linewidth": 1}
        trend.plot([point["step"] for point in points], [point["tau"] for point in points], label=name, **style)
    trend.set(xlabel="optimiser step", title="tau on held-out answers, teacher-forced, T = 1")
    for axes in (lengths, trend):
        axes.grid(visible=True, linewidth=0.3)
        axes.legend(fontsize="x-small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def _by_temperature(drafters: Mapping[str, Json]) -> tuple[list[Json], list[Json]]:
    return list(drafters.values()), [one["at_temperature_1"] for one in drafters.values()]
