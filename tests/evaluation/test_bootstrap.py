"""Intervals cover the truth about as often as they say, and know that prompts, not rounds, are independent."""

import numpy as np

from dspark.evaluation.bootstrap import Sample, mean_ratio_interval, ratio, ratio_interval


def test_ratio_is_of_sums() -> None:
    assert ratio([Sample(1, 1), Sample(9, 3)]) == 2.5
    assert ratio([]) == 0.0


def test_equal_prompts_have_no_spread() -> None:
    assert ratio_interval([Sample(6, 3)] * 5) == (2.0, 2.0)


def test_coverage_is_near_the_level() -> None:
    """100 experiments of 40 prompts, true ratio 2: binomial(100, 0.95) stays above 85 with probability > 0.9999."""
    generator = np.random.default_rng(1)
    covered = 0
    for trial in range(100):
        rounds = generator.integers(20, 60, size=40)
        taus = generator.normal(2.0, 0.3, size=40)
        low, high = ratio_interval(
            [Sample(t * r, r) for t, r in zip(taus, rounds, strict=True)], resamples=500, seed=trial
        )
        covered += low <= 2.0 <= high
    assert covered > 85


def test_the_mean_over_sets_has_a_narrower_interval_than_its_sets() -> None:
    generator = np.random.default_rng(2)
    groups = [[Sample(x, 1) for x in generator.normal(2, 0.5, size=24)] for _ in range(9)]
    mean_low, mean_high = mean_ratio_interval(groups)
    widths = [high - low for low, high in (ratio_interval(group) for group in groups)]
    assert mean_high - mean_low < min(widths)
