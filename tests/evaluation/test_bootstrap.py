"""Intervals cover the truth about as often as they say, and know that prompts, not rounds, are independent."""

import numpy as np
import pytest

from dspark.evaluation.bootstrap import Sample, mean_ratio_interval, quotient_interval, ratio, ratio_interval


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


def test_what_makes_a_prompt_easy_for_both_cancels_in_their_quotient() -> None:
    """Prompts differ much, drafters by a tenth on each: resampling both sides apart would hide the difference."""
    generator = np.random.default_rng(3)
    groups = [[Sample(10 * tau, 10) for tau in generator.uniform(1.5, 3.5, size=20)] for _ in range(3)]
    better = [[Sample(1.1 * s.numerator, s.denominator) for s in group] for group in groups]
    assert quotient_interval(better, groups) == pytest.approx((1.1, 1.1))


def test_the_interval_of_a_quotient_covers_it_about_as_often_as_it_says() -> None:
    """True quotient 1.25, noise of each side's own; binomial(60, 0.95) stays above 48 with probability > 0.999."""
    generator = np.random.default_rng(4)
    covered = 0
    for trial in range(60):
        easy = generator.uniform(1.0, 2.0, size=(2, 30))
        sides = [easy * mean * generator.normal(1, 0.1, size=easy.shape) for mean in (1.25, 1.0)]
        one, other = ([[Sample(tau, 1) for tau in group] for group in side] for side in sides)
        low, high = quotient_interval(one, other, resamples=400, seed=trial)
        covered += low <= 1.25 <= high
    assert covered > 48
