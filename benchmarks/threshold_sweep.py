"""What a static threshold on confidences buys, like the paper's Figure 5: per domain, as JSON and as a figure.

Reads rounds that `dspark calibrate --records DIR` kept. A round of full width tells what every threshold would have
verified: the drafts before the first one whose conditional confidence c is below it. Confidences are calibrated (STS)
on one half of the prompts, and the sweep runs on the other.

    python benchmarks/threshold_sweep.py runs/rounds --json docs/results/threshold_sweep.json --plot sweep.png
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspark.calibration import RoundRecords, conditionals, fit_temperatures, read_records, split_by_request
from dspark.calibration.shards import shard_paths, shard_settings
from dspark.calibration.signals import Floats
from dspark.figures import load_matplotlib

THRESHOLDS = tuple(k / 10 for k in range(10))
ALL = "all"


@dataclass(frozen=True)
class SweepPoint:
    """One threshold: share of the drafts verified, share of those accepted (None if there are none), tokens a round.

    A round's tokens are accepted drafts and one of the target's own, also where an end token leaves no place for it.
    """

    threshold: float
    verified: float
    acceptance: float | None
    tokens_per_round: float


def main() -> None:
    """Calibrate on half of the prompts, sweep on the rest, write what was asked for."""
    args = arguments()
    fit, report = split_by_request(read_records([args.records]))
    c = conditionals(fit_temperatures(fit).survival(report.signals))
    curves = sweep(report, c)
    print(markdown(curves))
    if args.json is not None:
        write_json(args.json, curves, report, args.records)
    if args.plot is not None:
        save_figure(args.plot, curves)


def sweep(
    records: RoundRecords, c: Floats, thresholds: Sequence[float] = THRESHOLDS
) -> dict[str, tuple[SweepPoint, ...]]:
    """The curve of each domain, and of all rounds together, given confidences `c` [rounds, gamma]."""
    groups = {str(name): records.domain == name for name in np.unique(records.domain)}
    groups[ALL] = np.ones(len(records), dtype=bool)
    return {
        name: tuple(sweep_point(records.take(rows), c[rows], threshold) for threshold in thresholds)
        for name, rows in groups.items()
    }


def sweep_point(records: RoundRecords, c: Floats, threshold: float) -> SweepPoint:
    """Verify each block up to its first c below `threshold`; drafts after an accepted end token do not count."""
    confident = np.logical_and.accumulate(c >= threshold, axis=1).sum(axis=1)
    widths = np.minimum(confident, records.judged)
    accepted = int(np.minimum(records.accepted, widths).sum())
    verified, drafts = int(widths.sum()), int(records.judged.sum())
    rate = accepted / verified if verified else None
    return SweepPoint(threshold, verified / drafts, rate, 1 + accepted / len(records))


def markdown(curves: dict[str, tuple[SweepPoint, ...]]) -> str:
    """Acceptance of the verified drafts and tokens a round, by threshold and domain."""
    header = ["threshold", *curves]
    rows = [[f"{points[0].threshold:g}", *map(cell, points)] for points in zip(*curves.values(), strict=True)]
    title = "Acceptance of verified drafts (share verified, tokens a round)\n"
    return "\n".join((title, *(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))))


def cell(point: SweepPoint) -> str:
    """One cell of the table."""
    rate = "-" if point.acceptance is None else f"{point.acceptance:.0%}"
    return f"{rate} ({point.verified:.0%}, {point.tokens_per_round:.2f})"


def write_json(path: Path, curves: dict[str, tuple[SweepPoint, ...]], records: RoundRecords, source: Path) -> None:
    """Curves, how many rounds they rest on, and what the rounds were recorded with."""
    rounds = {name: len(records) if name == ALL else int((records.domain == name).sum()) for name in curves}
    settings: dict[str, Any] = shard_settings(shard_paths(source)[0])
    data = {
        "settings": settings,
        "rounds": rounds,
        "curves": {name: [asdict(point) for point in points] for name, points in curves.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")


def save_figure(path: Path, curves: dict[str, tuple[SweepPoint, ...]]) -> None:
    """Three panels over the threshold, one line per domain."""
    figure = load_matplotlib()(figsize=(11, 3.4), layout="constrained")
    panels = (
        ("acceptance", "accepted share of verified drafts"),
        ("verified", "verified share of drafts"),
        ("tokens_per_round", "tokens a round"),
    )
    for axes, (field, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name, points in curves.items():
            values = [getattr(point, field) for point in points]
            values = [float("nan") if value is None else value for value in values]
            style = {"color": "black", "linestyle": "--"} if name == ALL else {"marker": "o", "markersize": 3}
            axes.plot([point.threshold for point in points], values, label=name, **style)
        axes.set(xlabel="confidence threshold", ylabel=label)
    figure.axes[0].legend(fontsize="small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, metavar="DIR", help="rounds kept by `dspark calibrate --records`")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="needs matplotlib")
    return parser.parse_args()


if __name__ == "__main__":
    main()
