"""How well survival is predicted on rounds that nothing was fitted on. Shapes: N rounds, G slots."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dspark.calibration.methods import MethodName, method
from dspark.calibration.metrics import Reliability, auroc, brier, reliability
from dspark.calibration.oracle import Oracle
from dspark.calibration.records import RoundRecords
from dspark.calibration.signals import Floats, SurvivalModel, cumulative
from dspark.calibration.temperature import uncalibrated


@dataclass(frozen=True, slots=True)
class PositionReport:
    """Predictions for one position: `rounds` in which it was judged, `survived` of them, and the metrics.

    `auc` is NaN where all rounds ended alike, every metric where there were none.
    """

    rounds: int
    survived: float
    auc: float
    brier: float
    bins: Reliability | None

    @property
    def ece(self) -> float:
        """Expected calibration error."""
        return float("nan") if self.bins is None else self.bins.ece

    @property
    def ece_floor(self) -> float:
        """What chance alone would leave of it."""
        return float("nan") if self.bins is None else self.bins.ece_floor

    @property
    def mean_predicted(self) -> float:
        """Mean predicted survival."""
        return float("nan") if self.bins is None else float(self.bins.predicted.sum() / self.rounds)

    @property
    def mean_observed(self) -> float:
        """Share of the rounds whose prefix survived."""
        return self.survived / self.rounds if self.rounds else float("nan")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same rounds, predicted by the raw logits and by a fitted model, position by position."""

    before: tuple[PositionReport, ...]
    after: tuple[PositionReport, ...]

    def as_json(self) -> dict[str, Any]:
        """Lists per position; `auc` is that of the raw logits, as in the paper's Figure 6."""
        return {
            "ece_before": [one.ece for one in self.before],
            "ece_after": [one.ece for one in self.after],
            "ece_floor": [one.ece_floor for one in self.after],
            "mean_ece_before": mean_over_positions(self.before, lambda one: one.ece),
            "mean_ece_after": mean_over_positions(self.after, lambda one: one.ece),
            "auc": [one.auc for one in self.before],
            "auc_after": [one.auc for one in self.after],
            "brier_before": [one.brier for one in self.before],
            "brier_after": [one.brier for one in self.after],
            "mean_predicted_before": [one.mean_predicted for one in self.before],
            "mean_predicted_after": [one.mean_predicted for one in self.after],
            "mean_observed": [one.mean_observed for one in self.before],
            "rounds": [one.rounds for one in self.before],
            "survived": [one.survived for one in self.before],
        }


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """A fitted model and its figures on the report rounds: together, by domain, and beside the other methods.

    `oracle` are those of a head that states every slot's exact chance of acceptance, which is what heads are taught. No
    confidence beats it at position 1; behind it the drawn tokens tell more than such chances do. None where the
    records do not tell them.
    """

    method: MethodName
    model: SurvivalModel
    overall: Comparison
    domains: dict[str, Comparison]
    alternatives: dict[str, tuple[PositionReport, ...]]
    oracle: tuple[PositionReport, ...] | None
    fit_rounds: int
    report_rounds: int

    def as_json(self) -> dict[str, Any]:
        """The shape scripts rely on: ece_before, ece_after, auc, each per position, and more beside them."""
        others = {name: _figures(one) for name, one in self.alternatives.items()}
        return {
            **self.overall.as_json(),
            "method": self.method.value,
            "fit_rounds": self.fit_rounds,
            "report_rounds": self.report_rounds,
            "domains": {name: one.as_json() for name, one in self.domains.items()},
            "alternatives": others,
            "oracle": None if self.oracle is None else _figures(self.oracle),
        }

    def summary(self) -> dict[str, Any]:
        """The few figures that are kept beside the model; null where a position has none."""
        figures = self.overall.as_json()
        kept = {key: figures[key] for key in ("ece_before", "ece_after", "ece_floor", "auc", "rounds", "survived")}
        plain = {key: [None if math.isnan(value) else round(value, 6) for value in kept[key]] for key in kept}
        return {**plain, "fit_rounds": self.fit_rounds, "report_rounds": self.report_rounds}


def calibrate(fit: RoundRecords, report: RoundRecords, name: MethodName = MethodName.STS) -> CalibrationReport:
    """Fit method `name` on `fit` and measure it, and every other method, on `report`.

    Raises FormatError or ConfigError for records that the method cannot use.
    """
    models = {one: method(one).fit(fit) for one in MethodName if one is name or _usable(one, fit)}
    domains = {str(one): report.take(report.domain == one) for one in np.unique(report.domain)}
    return CalibrationReport(
        method=name,
        model=models[name],
        overall=_compare(models[name], report),
        domains={domain: _compare(models[name], rounds) for domain, rounds in domains.items()},
        alternatives={one.value: positions(model, report) for one, model in models.items()},
        oracle=_oracle(report),
        fit_rounds=len(fit),
        report_rounds=len(report),
    )


def positions(model: SurvivalModel, records: RoundRecords) -> tuple[PositionReport, ...]:
    """The figures of each position; slots after an accepted end token are left out."""
    survival, labels, valid = model.survival(records.signals), records.labels, records.valid
    columns = range(records.gamma)
    return tuple(_position(survival[valid[:, k], k], labels[valid[:, k], k]) for k in columns)


def mean_over_positions(reports: Sequence[PositionReport], figure: Callable[[PositionReport], float]) -> float:
    """Plain mean of a figure over the positions that have it; NaN if none has."""
    known = [value for value in map(figure, reports) if not math.isnan(value)]
    return sum(known) / len(known) if known else float("nan")


def _position(predicted: Floats, labels: Floats) -> PositionReport:
    if not len(labels):
        return PositionReport(0, 0.0, float("nan"), float("nan"), None)
    bins = reliability(predicted, labels)
    return PositionReport(len(labels), float(labels.sum()), auroc(predicted, labels), brier(predicted, labels), bins)


def _compare(model: SurvivalModel, records: RoundRecords) -> Comparison:
    raw = uncalibrated(records.gamma, records.signals.source)
    return Comparison(positions(raw, records), positions(model, records))


def _figures(reports: Sequence[PositionReport]) -> dict[str, list[float]]:
    return {"ece": [p.ece for p in reports], "auc": [p.auc for p in reports], "brier": [p.brier for p in reports]}


def _oracle(records: RoundRecords) -> tuple[PositionReport, ...] | None:
    if np.isnan(records.overlap).all():
        return None
    return positions(Oracle(cumulative(records.overlap.astype(np.float64).clip(0.0, 1.0))), records)


def _usable(name: MethodName, records: RoundRecords) -> bool:
    """Whether the records hold what a method needs: only logistic regression asks for peaks."""
    return name is not MethodName.LOGISTIC or records.signals.peak is not None
