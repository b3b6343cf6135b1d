"""Acceptance estimated from the draft distribution, for drafters without a confidence head and beside one.

c_k = sigmoid(w_k . x_k) on features that are known before the token is drawn: never its own probability, which
would anticipate it (contract 2). Shapes: N, B rounds, G slots, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dspark.calibration.records import RoundRecords
from dspark.calibration.signals import Floats, Signals, check_slots, cumulative, finite, sigmoid
from dspark.errors import ConfigError

PRIOR_STRENGTH = 4.0
"""Precision of the normal prior that ties the weights of a position to those of all positions together."""
NEWTON_STEPS = 30


class Feature(StrEnum):
    """What an estimator may read of slot k, beside an intercept."""

    PEAK = "peak"
    """Log-odds of the largest draft probability of slot k."""
    WORST = "worst"
    """The smallest peak of slots up to k: how shaky the prefix is."""
    HISTORY = "history"
    """Share of the request's drafts that passed so far (`RoundHistory`)."""
    ENTROPY = "entropy"
    """Entropy of slot k's draft law."""
    CONFIDENCE = "confidence"
    """The confidence head's logit of slot k."""


HEADLESS = (Feature.PEAK, Feature.WORST, Feature.HISTORY, Feature.ENTROPY)
ALL_FEATURES = (*HEADLESS, Feature.CONFIDENCE)


@dataclass(frozen=True, slots=True)
class LogisticSurvival:
    """c_k = sigmoid(w_k . (1, features)) and a_k = c_1 ... c_k; `weights` holds 1 + F numbers for each position."""

    features: tuple[Feature, ...]
    weights: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.weights or {len(row) for row in self.weights} != {1 + len(self.features)}:
            raise ConfigError(f"weights must hold 1 + {len(self.features)} numbers for each position")
        finite(np.array(self.weights), "weights")

    @property
    def gamma(self) -> int:
        """Positions that have weights."""
        return len(self.weights)

    def conditional_logits(self, signals: Signals) -> Floats:
        """Logits [B, G] of c."""
        design = design_matrix(signals, self.features)
        check_slots(design.shape[1], self.gamma)
        logits: Floats = (design * np.array(self.weights[: design.shape[1]])).sum(axis=-1)
        return logits

    def survival(self, signals: Signals) -> Floats:
        """a [B, G], non-increasing."""
        return cumulative(sigmoid(self.conditional_logits(signals)))


def design_matrix(signals: Signals, features: Sequence[Feature]) -> Floats:
    """[B, G, 1 + F]: ones, then the features in order. Raises ConfigError where one was not collected."""
    columns = [_column(signals, feature) for feature in features]
    shape = columns[0].shape if columns else signals.logits.shape
    return np.stack([np.ones(shape), *(np.broadcast_to(column, shape) for column in columns)], axis=-1)


def conditional_data(records: RoundRecords) -> tuple[Floats, Floats]:
    """(weights, labels), each [N, G]: 1 where slot k was at stake, its prefix having survived; whether it did."""
    labels = records.labels
    stake = np.concatenate((np.ones((len(records), 1)), labels[:, :-1]), axis=1)
    return stake * records.valid, labels


def fit_logistic(records: RoundRecords, features: Sequence[Feature] | None = None) -> LogisticSurvival:
    """Maximum likelihood, each position drawn towards the fit of all together, as deep ones are rarely at stake.

    Without `features`: those that the records hold.
    """
    if features is None:
        features = [feature for feature in ALL_FEATURES if _collected(records.signals, feature)]
    design = design_matrix(records.signals, features)
    stake, labels = conditional_data(records)
    flat, origin = design.reshape(-1, design.shape[-1]), np.zeros(design.shape[-1])
    together = newton_fit(flat, labels.ravel(), stake.ravel(), origin, strength=0.01)
    positions = range(records.gamma)
    weights = [newton_fit(design[:, k], labels[:, k], stake[:, k], together, PRIOR_STRENGTH) for k in positions]
    return LogisticSurvival(tuple(features), tuple(tuple(row.tolist()) for row in weights))


def newton_fit(design: Floats, labels: Floats, stake: Floats, prior: Floats, strength: float) -> Floats:
    """Weights [F] that maximise the weighted log likelihood under a normal prior, by damped Newton steps.

    `design` [N, F], `labels` and `stake` [N]; the prior has mean `prior` [F] and precision `strength`.
    """

    def cost(w: Floats) -> float:
        z = design @ w
        return float(stake @ (np.logaddexp(0, z) - labels * z) + strength / 2 * ((w - prior) ** 2).sum())

    w, current = prior.copy(), cost(prior)
    for _ in range(NEWTON_STEPS):
        p = sigmoid(design @ w)
        gradient = design.T @ (stake * (p - labels)) + strength * (w - prior)
        curvature = (design.T * (stake * p * (1 - p))) @ design + strength * np.eye(len(w))
        step, size = np.linalg.solve(curvature, gradient), 1.0
        while cost(w - size * step) > current and size > 1e-6:
            size /= 2
        w = w - size * step
        previous, current = current, cost(w)
        if previous - current < 1e-9 * max(1.0, abs(current)):
            break
    return w


def _collected(signals: Signals, feature: Feature) -> bool:
    """Peaks and histories always are; `_column` says what is wrong where they are not."""
    wanted = {Feature.ENTROPY: signals.entropy, Feature.CONFIDENCE: signals.confidence}
    return wanted.get(feature, signals) is not None


def _column(signals: Signals, feature: Feature) -> Floats:
    if feature is Feature.ENTROPY:
        return signals.entropies
    if feature is Feature.HISTORY:
        return signals.histories[:, None]
    if feature is Feature.CONFIDENCE:
        return signals.confidences
    peaks = signals.peaks
    return peaks if feature is Feature.PEAK else np.minimum.accumulate(peaks, axis=-1)
