"""A straight line through times that are too noisy to be told apart one by one: all together they may still rise."""

from dataclasses import dataclass

import numpy as np

from dspark.scheduling.arrays import Floats, Ints

LEAST_POINTS = 4
"""Fewer points are as well judged by their range."""

CLEAR = 2.0
"""A slope counts from so many of its standard errors on: of flat curves one in about forty has such a one."""


@dataclass(frozen=True, slots=True)
class Line:
    """`level` + `slope` * (size - `centre`)."""

    level: float
    slope: float
    centre: float
    error: float
    """Standard error of `slope`, for errors of 1 relative to `level` at each point."""

    @classmethod
    def through(cls, sizes: Ints, seconds: Floats) -> "Line":
        """The best one with equal relative errors; it never falls."""
        weights = seconds**-2
        total = weights.sum()
        centre, level = float(weights @ sizes / total), float(weights @ seconds / total)
        away = sizes - centre
        spread = weights @ away**2
        slope = max(float(weights @ (away * (seconds - level)) / spread), 0.0)
        return cls(level, slope, centre, level / float(np.sqrt(away @ away)))

    def at(self, sizes: Ints) -> Floats:
        """Seconds at each of `sizes`."""
        seconds: Floats = self.level + self.slope * (sizes - self.centre)
        return seconds


def rises(sizes: Ints, seconds: Floats, noise: float) -> bool:
    """Whether `seconds` of ascending `sizes` rise by more than chance; `noise` is that of a `CostTable`."""
    if len(sizes) < LEAST_POINTS:
        return False
    line = Line.through(sizes, seconds)
    return line.slope >= CLEAR * (noise / 2) * line.error
