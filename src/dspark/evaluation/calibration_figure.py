"""Reliability diagrams and errors by position, like the paper's Figure 6; needs matplotlib (the extra `plots`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspark.calibration.metrics import BINS
from dspark.calibration.report import CalibrationReport, PositionReport
from dspark.figures import load_matplotlib

BEFORE, AFTER, PLAIN = "#d08770", "#5e81ac", "#bbbbbb"
DIAGRAMS = 4


def save_calibration_figure(report: CalibrationReport, path: Path) -> None:
    """Draw up to four reliability diagrams above ECE and AUC of every position into a PNG."""
    gamma = len(report.overall.before)
    shown = sorted({round(k) for k in np.linspace(0, gamma - 1, min(gamma, DIAGRAMS))})
    figure = load_matplotlib()(figsize=(3.2 * max(len(shown), 2), 6.6), layout="constrained")
    grid = figure.add_gridspec(2, 2 * len(shown), height_ratios=(3, 2))
    for column, k in enumerate(shown):
        axes = figure.add_subplot(grid[0, 2 * column : 2 * column + 2])
        _diagram(axes, report.overall.before[k], report.overall.after[k], k)
    _bars(figure.add_subplot(grid[1, : len(shown)]), report)
    _discrimination(figure.add_subplot(grid[1, len(shown) :]), report)
    figure.suptitle(f"{report.method.value.upper()}: {report.report_rounds} rounds of prompts that were not fitted on")
    figure.savefig(path, dpi=150, format="png")


def _diagram(axes: Any, before: PositionReport, after: PositionReport, k: int) -> None:
    axes.plot((0, 1), (0, 1), color=PLAIN, linewidth=1, linestyle="--")
    for one, color, label in ((before, BEFORE, "before"), (after, AFTER, "after")):
        if one.bins is None:
            continue
        used = one.bins.counts > 0
        predicted, observed = (sums[used] / one.bins.counts[used] for sums in (one.bins.predicted, one.bins.observed))
        axes.plot(predicted, observed, marker="o", markersize=3, color=color, label=f"{label}: ECE {one.ece:.1%}")
    if after.bins is not None:
        shares = after.bins.counts / after.bins.counts.sum()
        axes.bar((np.arange(BINS) + 0.5) / BINS, shares, width=1 / BINS, color=AFTER, alpha=0.2)
    axes.set(
        title=f"position {k + 1}: {before.mean_observed:.1%} survive",
        xlabel="predicted survival",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    axes.set_ylabel("observed (bars: share of rounds)" if k == 0 else "")
    axes.legend(loc="upper left", fontsize="small", frameon=False)


def _bars(axes: Any, report: CalibrationReport) -> None:
    places = np.arange(1, len(report.overall.before) + 1)
    for reports, offset, color, label in _sides(report):
        axes.bar(places + offset, _percent([one.ece for one in reports]), 0.4, color=color, label=label)
    floor = _percent([one.ece_floor for one in report.overall.after])
    axes.scatter(places, floor, marker="_", s=200, color="black", label="chance alone", zorder=3)
    axes.set(xlabel="position", ylabel="ECE, %", xticks=places)
    axes.legend(fontsize="small", frameon=False)


def _discrimination(axes: Any, report: CalibrationReport) -> None:
    places = np.arange(1, len(report.overall.before) + 1)
    for reports, offset, color, label in _sides(report):
        axes.bar(places + offset, [one.auc for one in reports], 0.4, color=color, label=label)
    if report.oracle is not None:
        bound = [one.auc for one in report.oracle]
        axes.scatter(places, bound, marker="_", s=200, color="black", label="exact chances", zorder=3)
    axes.legend(loc="upper left", ncol=3, fontsize="small", frameon=False)
    axes.axhline(0.5, color=PLAIN, linewidth=1, linestyle="--")
    axes.set(xlabel="position", ylabel="AUC", xticks=places, ylim=(0.4, 1.05))


def _sides(report: CalibrationReport) -> tuple[tuple[Sequence[PositionReport], float, str, str], ...]:
    """What stands side by side at every position: the figures, their place, colour and name."""
    return (report.overall.before, -0.2, BEFORE, "before"), (report.overall.after, 0.2, AFTER, "after")


def _percent(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]
