"""How much of what sets a request apart lasts until the round that is planned. Shapes: B requests, gamma drafts."""

import numpy as np

from dspark.scheduling.arrays import Floats

RATE = 0.02
"""How much one round takes from what earlier ones have shown."""

PRIOR = 0.05
"""Squared deviations that stand for full persistence: few rounds of one request outweigh it."""


class Persistence:
    """The slope of a regression through the origin: later deviations from the mean survival, of earlier ones.

    Until something is known, deviations are taken to last whole: confidences are believed as they are.
    """

    def __init__(self) -> None:
        self._both = self._squares = PRIOR

    @property
    def slope(self) -> float:
        """What share of a deviation is expected to last, in [0, 1]."""
        return min(max(self._both / self._squares, 0.0), 1.0)

    def expected(self, mean: Floats, survival: Floats) -> Floats:
        """Survivals [gamma, B] to expect where `survival` was seen, of requests whose mean is `mean` [gamma]."""
        slope = self.slope
        if slope == 1.0:
            return survival
        expected: Floats = mean[:, None] + slope * (survival - mean[:, None])
        return expected

    def learn(self, before: Floats, after: Floats) -> None:
        """Deviations [gamma, B] were `before`, and turned out as `after`."""
        self._both += RATE * (PRIOR - self._both) + float(np.vdot(before, after))
        self._squares += RATE * (PRIOR - self._squares) + float(np.vdot(before, before))
