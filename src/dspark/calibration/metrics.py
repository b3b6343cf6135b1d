"""How good predicted survivals are. Shapes: N rounds. A label is 0 or 1.

ECE, reliability and Brier follow DeepSpec: 20 equal-width bins, count weighted, on the cumulative product against
whether the prefix survived (paper Figure 6). AUROC is exact where DeepSpec uses a histogram.
"""

from dataclasses import dataclass
from math import pi

import numpy as np

from dspark.calibration.signals import Floats
from dspark.errors import ConfigError

BINS = 20


@dataclass(frozen=True, slots=True)
class Reliability:
    """Bins of equal width over [0, 1]: `counts`, summed `predicted` and summed `observed`, each [bins].

    `variance` [bins] is the sum of p (1 - p): how much the observed sum scatters if every prediction is right.
    """

    counts: Floats
    predicted: Floats
    observed: Floats
    variance: Floats

    @property
    def ece(self) -> float:
        """Count-weighted mean of |mean prediction - mean label|."""
        return float(np.abs(self.predicted - self.observed).sum() / self.counts.sum())

    @property
    def ece_floor(self) -> float:
        """ECE to expect by chance alone, if the predictions were exact: no model can be measured below it.

        Sum of the half-normal means sqrt(2 / pi) sqrt(variance) of the bins.
        """
        return float(np.sqrt(2 / pi * self.variance).sum() / self.counts.sum())


def reliability(predicted: Floats, labels: Floats, bins: int = BINS) -> Reliability:
    """Sort N predictions in [0, 1] into bins; the edge belongs to the upper bin, 1 to the last.

    Raises ConfigError for an empty batch, NaN, and values outside [0, 1].
    """
    _check(predicted, labels)
    index = np.minimum((predicted * bins).astype(np.int64), bins - 1)

    def sums(weights: Floats) -> Floats:
        return np.bincount(index, weights, minlength=bins).astype(np.float64)

    ones = np.ones(len(predicted))
    return Reliability(sums(ones), sums(predicted), sums(labels), sums(predicted * (1 - predicted)))


def expected_calibration_error(predicted: Floats, labels: Floats, bins: int = BINS) -> float:
    """ECE of N predictions; errors as in `reliability`."""
    return reliability(predicted, labels, bins).ece


def brier(predicted: Floats, labels: Floats) -> float:
    """Mean squared distance of N predictions to their labels; errors as in `reliability`."""
    _check(predicted, labels)
    return float(((predicted - labels) ** 2).mean())


def auroc(scores: Floats, labels: Floats) -> float:
    """Chance that a surviving prefix scores higher than another one, ties counting half; exact, in N log N.

    NaN without one of the two.
    """
    _check(scores, labels, low=-np.inf, high=np.inf)
    _, group = np.unique(scores, return_inverse=True)
    positive, negative = np.bincount(group, labels), np.bincount(group, 1 - labels)
    below = np.cumsum(negative) - negative
    pairs = float(positive.sum() * negative.sum())
    return float((positive * (below + negative / 2)).sum()) / pairs if pairs > 0 else float("nan")


def _check(predicted: Floats, labels: Floats, low: float = 0.0, high: float = 1.0) -> None:
    if predicted.shape != labels.shape or predicted.ndim != 1 or not len(predicted):
        raise ConfigError(
            f"predictions have shape {list(predicted.shape)}, labels {list(labels.shape)}; expected two equal "
            "lists with at least one entry"
        )
    if not ((predicted >= low) & (predicted <= high)).all():
        raise ConfigError(f"predictions hold NaN or values outside [{low}, {high}]")
    if not ((labels == 0) | (labels == 1)).all():
        raise ConfigError("labels hold values other than 0 and 1")
