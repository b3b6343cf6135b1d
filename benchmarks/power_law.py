"""How a curve goes on: tau(h) = a + s (1 - h^-b) / b, with intervals that say how little a short curve tells.

h is time over the last time that was measured. b = 0 is a + s ln h, which never saturates; others reach a + s / b.
Which b it is decides an extrapolation and is badly determined by the curve itself, so b belongs to what is resampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXPONENTS = np.linspace(0.0, 2.0, 41)
RESAMPLES = 2000
FEWEST = 6
"""Points below which nothing is fitted: three numbers and their scatter are to come out of them."""


@dataclass(frozen=True, slots=True)
class PowerLaws:
    """The best law of a curve, and one of each resample of its residuals; arrays [1 + resamples], the best first."""

    level: Floats
    slope: Floats
    exponent: Floats

    @classmethod
    def fit(cls, hours: Sequence[float], tau: Sequence[float], seed: int = 0) -> "PowerLaws":
        """Least squares. Residuals are resampled in circular blocks, for neighbours have errors in common.

        Raises:
            ValueError: fewer than `FEWEST` points.
        """
        if len(hours) < FEWEST:
            raise ValueError(f"{len(hours)} evaluations at a constant rate, a fit needs {FEWEST}; evaluate more often")
        h, y = np.asarray(hours) / hours[-1], np.asarray(tau, dtype=float)
        fitted = cls._least_squares(h, y[None])
        expected = fitted.at(h)[0]
        residuals = (y - expected) * np.sqrt(len(h) / (len(h) - 3))
        drawn = residuals[_blocks(len(h), np.random.default_rng(seed))]
        return cls._least_squares(h, np.concatenate((y[None], expected + drawn)))

    @classmethod
    def _least_squares(cls, h: Floats, curves: Floats) -> "PowerLaws":
        """The best law of each of `curves` [n, points]: all exponents are tried."""
        tried = [_line(_shape(h, b), curves) for b in EXPONENTS]
        errors, levels, slopes = (np.stack(parts) for parts in zip(*tried, strict=True))
        best = errors.argmin(axis=0)
        each = np.arange(len(curves))
        return cls(levels[best, each], slopes[best, each], EXPONENTS[best])

    def at(self, h: Floats) -> Floats:
        """Values [1 + resamples, points]."""
        return self.level[:, None] + self.slope[:, None] * np.stack([_shape(h, b) for b in self.exponent])

    def gain(self, factor: float, level: float = 0.95) -> tuple[float, tuple[float, float]]:
        """What `factor` times the time would add to the end of the curve, and its interval."""
        gains = self.at(np.array([factor]))[:, 0] - self.level
        low, high = np.quantile(gains[1:], ((1 - level) / 2, (1 + level) / 2))
        return float(gains[0]), (float(low), float(high))


def _shape(h: Floats, b: float) -> Floats:
    return np.log(h) if b == 0 else (1 - h**-b) / b


def _line(x: Floats, curves: Floats) -> tuple[Floats, Floats, Floats]:
    """Squared error, value at x = 0 and slope of the regression of each curve on x."""
    centred = x - x.mean()
    slope = curves @ centred / (centred @ centred)
    level = curves.mean(axis=1) - slope * x.mean()
    errors = curves - level[:, None] - slope[:, None] * x
    return (errors**2).sum(axis=1), level, slope


def _blocks(points: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Indices [resamples, points] in circular blocks of about the cube root of their number."""
    length = max(1, round(points ** (1 / 3)))
    starts = generator.integers(points, size=(RESAMPLES, -(-points // length)))
    runs = (starts[..., None] + np.arange(length)) % points
    return runs.reshape(RESAMPLES, -1)[:, :points]
