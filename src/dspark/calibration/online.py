"""A logistic estimator that learns while it serves. Shapes: N rounds, G slots, F features with intercept."""

from collections.abc import Sequence

import numpy as np

from dspark.calibration.logistic import HEADLESS, Feature, LogisticSurvival, conditional_data, design_matrix
from dspark.calibration.records import RoundRecords
from dspark.calibration.signals import Floats, sigmoid
from dspark.errors import ConfigError


class OnlineLogistic:
    """Follows a drifting acceptance: a Newton step per round, older rounds fading with `memory` rounds.

    Feed it full-width rounds only: those that a schedule trimmed are censored by what it believed (`RoundLottery`).
    `start`, a fit of as many positions, brings its own features. Raises ConfigError for a value that cannot work.
    """

    def __init__(
        self,
        gamma: int,
        features: Sequence[Feature] = HEADLESS,
        start: LogisticSurvival | None = None,
        memory: float = 2000.0,
        prior_strength: float = 4.0,
    ) -> None:
        if gamma < 1:
            raise ConfigError(f"gamma is {gamma}; expected 1 position or more")
        if start is not None and start.gamma != gamma:
            raise ConfigError(f"start knows {start.gamma} positions and gamma is {gamma}; start from a fit of {gamma}")
        if not memory >= 1:
            raise ConfigError(f"memory is {memory}; expected 1 round or more")
        if not 0 < prior_strength < float("inf"):
            raise ConfigError(f"prior_strength is {prior_strength}; expected a positive number")
        self._features = tuple(features) if start is None else start.features
        width = 1 + len(self._features)
        self._weights: Floats = np.zeros((gamma, width)) if start is None else np.array(start.weights)
        self._precision = np.tile(np.eye(width) * prior_strength, (gamma, 1, 1))
        self._floor = np.eye(width) * prior_strength
        self._keep = 1 - 1 / memory

    @property
    def model(self) -> LogisticSurvival:
        """What has been learnt so far."""
        return LogisticSurvival(self._features, tuple(tuple(row) for row in self._weights.tolist()))

    def update(self, records: RoundRecords) -> None:
        """Learn from rounds, in their order."""
        design = design_matrix(records.signals, self._features)
        stake, labels = conditional_data(records)
        for x, at_stake, label in zip(design, stake, labels, strict=True):
            for k in np.flatnonzero(at_stake):
                self._step(int(k), x[k], float(label[k]))

    def _step(self, k: int, x: Floats, label: float) -> None:
        p = float(sigmoid(x @ self._weights[k]))
        faded = self._keep * self._precision[k] + (1 - self._keep) * self._floor
        self._precision[k] = faded + p * (1 - p) * np.outer(x, x)
        self._weights[k] += np.linalg.solve(self._precision[k], (label - p) * x)
