"""Isotonic calibration: any non-decreasing map per position. Shapes: N, B rounds, G slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dspark.calibration.records import RoundRecords
from dspark.calibration.signals import Floats, Signals, Source, check_slots, cumulative, non_increasing, sigmoid
from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class IsotonicMap:
    """Straight lines between the points (x, y), both non-decreasing and in [0, 1]; constant outside.

    Raises ConfigError for other numbers, for no points, and where x and y differ in length.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ConfigError(f"an isotonic map has {len(self.x)} x and {len(self.y)} y; expected as many of both")
        for name in ("x", "y"):
            _check_rising(name, np.array(getattr(self, name), dtype=np.float64))

    def __call__(self, values: Floats) -> Floats:
        """The map at `values`."""
        return np.interp(values, self.x, self.y)


@dataclass(frozen=True, slots=True)
class IsotonicSurvival:
    """a_k = map_k(product of the raw confidences of `source` up to k), clamped non-increasing."""

    maps: tuple[IsotonicMap, ...]
    source: Source = Source.CONFIDENCE

    def __post_init__(self) -> None:
        if not self.maps:
            raise ConfigError("maps is empty; expected an isotonic map per position")

    @property
    def gamma(self) -> int:
        """Positions that have a map."""
        return len(self.maps)

    def survival(self, signals: Signals) -> Floats:
        """a [B, G], non-increasing; ConfigError where `source` was not collected."""
        raw = cumulative(sigmoid(signals.of(self.source)))
        check_slots(raw.shape[-1], self.gamma)
        columns = [self.maps[k](raw[..., k]) for k in range(raw.shape[-1])]
        return non_increasing(np.stack(columns, axis=-1))


def fit_isotonic(records: RoundRecords) -> IsotonicSurvival:
    """Least squares under the order, position by position; a position that was never judged keeps its product."""
    raw = cumulative(sigmoid(records.signals.logits))
    maps = []
    for k in range(records.gamma):
        rows = records.valid[:, k]
        fitted = isotonic_map(raw[rows, k], records.labels[rows, k]) if rows.any() else IsotonicMap((0, 1), (0, 1))
        maps.append(fitted)
    return IsotonicSurvival(tuple(maps), records.signals.source)


def isotonic_map(x: Floats, y: Floats) -> IsotonicMap:
    """The non-decreasing least-squares fit of y [N] on x [N], equal x pooled; only the ends of flat stretches kept."""
    points, group = np.unique(x, return_inverse=True)
    weights = np.bincount(group).astype(np.float64)
    fitted = pool_violators(np.bincount(group, y) / weights, weights)
    step = np.diff(fitted) != 0
    kept = np.concatenate(([True], step)) | np.concatenate((step, [True]))
    return IsotonicMap(tuple(points[kept].tolist()), tuple(fitted[kept].tolist()))


def pool_violators(means: Floats, weights: Floats) -> Floats:
    """Pool adjacent violators: the non-decreasing sequence [N] closest to `means` [N] in weighted least squares."""
    blocks: list[tuple[float, float, int]] = []
    for mean, weight in zip(means.tolist(), weights.tolist(), strict=True):
        blocks.append((mean, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            blocks[-2:] = [_pooled(blocks[-2:])]
    return np.repeat([mean for mean, _, _ in blocks], [length for _, _, length in blocks])


def _check_rising(name: str, values: Floats) -> None:
    chances = ((values >= 0) & (values <= 1)).all()  # NaN is neither
    if not len(values) or not chances or (np.diff(values) < 0).any():
        raise ConfigError(f"{name} of an isotonic map is {values.tolist()}; expected non-decreasing numbers in [0, 1]")


def _pooled(blocks: Sequence[tuple[float, float, int]]) -> tuple[float, float, int]:
    weight = sum(w for _, w, _ in blocks)
    return sum(mean * w for mean, w, _ in blocks) / weight, weight, sum(length for _, _, length in blocks)
