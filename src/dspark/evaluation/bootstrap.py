"""Confidence intervals of micro-averaged ratios by resampling prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt's share of a ratio: accepted length over rounds, say."""

    numerator: float
    denominator: float


def ratio(samples: Sequence[Sample]) -> float:
    """sum of numerators / sum of denominators, 0 without any."""
    total = sum(sample.denominator for sample in samples)
    return sum(sample.numerator for sample in samples) / total if total else 0.0


def ratio_interval(
    samples: Sequence[Sample], level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of `ratio`; prompts are the independent units, their rounds are not."""
    return _percentiles(_resampled(samples, resamples, np.random.default_rng(seed)), level)


def mean_ratio_interval(
    groups: Sequence[Sequence[Sample]], level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Interval of the plain mean of the groups' ratios, each group resampled within itself."""
    generator = np.random.default_rng(seed)
    means = np.mean([_resampled(samples, resamples, generator) for samples in groups], axis=0)
    return _percentiles(means, level)


def median_interval(
    values: Sequence[float], level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the median of independent `values`; of five or fewer, about their range."""
    found = np.asarray(values, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(len(found), size=(resamples, len(found)))
    return _percentiles(np.median(found[chosen], axis=1), level)


def quotient_interval(
    groups: Sequence[Sequence[Sample]],
    others: Sequence[Sequence[Sample]],
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of the mean of the groups' ratios over that of `others`, of the same prompts in the same order.

    Both sides are resampled together: what makes a prompt easy for both cancels.
    """
    generator = np.random.default_rng(seed)
    draws = [_draws(len(samples), resamples, generator) for samples in groups]
    means = (
        np.mean([_ratios(samples, chosen) for samples, chosen in zip(side, draws, strict=True)], axis=0)
        for side in (groups, others)
    )
    numerator, denominator = means
    return _percentiles(numerator / denominator, level)


def _resampled(samples: Sequence[Sample], resamples: int, generator: np.random.Generator) -> NDArray[np.float64]:
    return _ratios(samples, _draws(len(samples), resamples, generator))


def _draws(count: int, resamples: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Which of `count` prompts each resample holds, [resamples, count]."""
    return generator.integers(count, size=(resamples, count)) if count else np.zeros((resamples, 0), dtype=np.int64)


def _ratios(samples: Sequence[Sample], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ratio of each resample; 0 where it has no rounds."""
    values = np.array([(s.numerator, s.denominator) for s in samples], dtype=np.float64).reshape(-1, 2)
    sums = values[chosen].sum(axis=1)
    ratios: NDArray[np.float64] = np.divide(sums[:, 0], sums[:, 1], out=np.zeros(len(sums)), where=sums[:, 1] > 0)
    return ratios


def _percentiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)
