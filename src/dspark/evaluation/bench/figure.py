"""Figures 7 and 8 of the paper for a benchmark, and where the time goes; needs matplotlib (the extra `plots`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark.evaluation.bench.arms import ARMS
from dspark.evaluation.bench.report import Row
from dspark.figures import load_matplotlib

COLORS = ("#4c566a", "#ebcb8b", "#a3be8c", "#d08770", "#b48ead", "#5e81ac", "#88c0d0")
PARTS = {
    "draft_share": ("draft", "#88c0d0"),
    "verify_share": ("verify", "#5e81ac"),
    "schedule_share": ("schedule", "#bf616a"),
    "other_share": ("other", "#d8dee9"),
}


def save_bench_figure(rows: Sequence[Row], path: Path, title: str = "") -> None:
    """Draw four panels into a PNG.

    Throughput against the median user's speed, a line an arm from low load to high (Figure 7); throughput and mean
    verification length against load (Figure 8); shares of the engine's time, a bar for each load and arm.
    """
    figure = load_matplotlib()(figsize=(11, 8), layout="constrained")
    speed, throughput, length, split = figure.subplots(2, 2).flatten()
    for place, arm in enumerate(_arms(rows)):
        own = [row for row in rows if row.arm == arm]
        style: dict[str, Any] = {
            "color": COLORS[place % len(COLORS)],
            "marker": "o",
            "markersize": 3,
            "label": _title(arm),
        }
        tokens, loads = _values(own, "tokens_per_second"), [_load(row) for row in own]
        speed.plot(_values(own, "user_tokens_per_second_p50"), tokens, **style)
        throughput.errorbar(loads, tokens, yerr=_errors(own), capsize=2, **style)
        length.plot(loads, _values(own, "verified_per_request"), **style)
    speed.set(xlabel="tokens/s of the median user", ylabel="tokens/s in total")
    throughput.set(xlabel=_load_label(rows), ylabel="tokens/s in total", xscale="log")
    length.set(xlabel=_load_label(rows), ylabel="drafts verified per request and round", xscale="log")
    for axes in (throughput, length):
        loads = sorted({_load(row) for row in rows})
        axes.set_xticks(loads, [f"{load:g}" for load in loads])
        axes.minorticks_off()
    _split(split, rows)
    for axes in (speed, throughput, length):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, linewidth=0.3)
    speed.legend(fontsize="small", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=150, format="png")


def _split(axes: Any, rows: Sequence[Row]) -> None:
    """Stacked bars: arms side by side at every load."""
    bottoms = [0.0] * len(rows)
    for name, (label, color) in PARTS.items():
        shares = _values(rows, name)
        axes.bar(range(len(rows)), shares, bottom=bottoms, color=color, label=label, width=0.85)
        bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
    names = [f"{_load(row):g} {_title(row.arm)}" for row in rows]
    axes.set_xticks(range(len(rows)), names, rotation=90, fontsize=min(8.0, 260 / len(rows)))
    axes.set(ylabel="share of the engine's time", ylim=(0, 1.12))
    axes.legend(ncol=len(PARTS), fontsize="small", frameon=False, loc="upper center")


def _arms(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.arm for row in rows))


def _title(arm: str) -> str:
    return ARMS[arm].title if arm in ARMS else arm


def _load(row: Row) -> float:
    return row.load.users or row.load.rate or 0


def _load_label(rows: Sequence[Row]) -> str:
    return "requests at once" if rows[0].load.users else f"requests a second ({rows[0].load.kind})"


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [row.value(name) or 0.0 for row in rows]


def _errors(rows: Sequence[Row]) -> list[list[float]]:
    """Distances from the medians to the ends of their intervals."""
    estimates = [estimate for row in rows if (estimate := row.figures["tokens_per_second"]) is not None]
    return [[one.median - one.low for one in estimates], [one.high - one.median for one in estimates]]
