"""Points that noise hides may rise together: then, and only then, a line through them is read."""

from dataclasses import replace

import numpy as np
import pytest

from dspark.scheduling import CostTable
from dspark.scheduling.trend import Line, rises

SIZES = np.arange(1, 9)


def table(seconds: list[float], noise: float) -> CostTable:
    return CostTable(tuple(range(1, len(seconds) + 1)), (0,), (tuple(seconds),), (1,), (0.0,), noise=noise)


def test_a_line_goes_through_points_on_it() -> None:
    line = Line.through(SIZES, 2.0 + 0.5 * SIZES)
    assert line.slope == pytest.approx(0.5)
    assert line.at(np.array([0, 20])) == pytest.approx([2.0, 12.0])


def test_errors_count_relative_to_what_is_measured() -> None:
    """Ten percent too much of a long time says no more than ten percent too much of a short one."""
    exact = Line.through(SIZES, 1.0 * SIZES)
    for wrong in (0, 7):
        seconds = 1.0 * SIZES
        seconds[wrong] *= 1.1
        assert abs(Line.through(SIZES, seconds).slope - exact.slope) < 0.04


def test_the_error_of_a_slope_is_what_noise_makes_of_it() -> None:
    """2,000 flat curves of relative error 0.05: the slopes that are not cut at 0 spread as `error` says, within 5 %."""
    random = np.random.default_rng(4)
    lines = [Line.through(SIZES, 1 + 0.05 * random.standard_normal(8)) for _ in range(2000)]
    positive = np.array([line.slope for line in lines if line.slope > 0])
    spread = np.sqrt(np.mean(positive**2))  # of a half-normal law: that of the whole
    assert spread == pytest.approx(0.05 * lines[0].error, rel=0.05)
    found = np.mean([rises(SIZES, 1 + 0.05 * random.standard_normal(8), noise=0.1) for _ in range(2000)])
    assert 0.01 < found < 0.04  # one in 44


def test_few_points_and_falling_ones_do_not_rise() -> None:
    assert not rises(SIZES[:3], np.array([1.0, 2.0, 3.0]), noise=0.01)
    assert not rises(SIZES, 2.0 - 0.1 * SIZES, noise=0.01)
    assert rises(SIZES[:4], np.array([1.0, 2.0, 3.0, 4.0]), noise=0.01)


JAGGED = [1.0, 1.12, 1.02, 1.2, 1.1, 1.28, 1.18, 1.3]


def test_a_rise_that_points_hide_is_read_from_the_line() -> None:
    """Range 30 %, gate 37 %; the slope is more than twice its error."""
    seconds = table(JAGGED, noise=0.2).round_seconds(1, 1, 7, 0)
    assert seconds.resolved
    line = Line.through(SIZES, np.array(JAGGED))
    assert seconds.drafted == pytest.approx(line.at(SIZES))
    assert seconds.plain == pytest.approx(line.at(SIZES[:1])[0])
    assert np.all(np.diff(seconds.drafted) > 0)


def test_clear_points_are_kept_and_a_flat_curve_stays_flat() -> None:
    assert table(JAGGED, noise=0.05).round_seconds(1, 1, 7, 0).drafted == pytest.approx(JAGGED)
    assert not table(JAGGED, noise=0.4).round_seconds(1, 1, 7, 0).resolved
    flat = [1.0, 1.1, 1.0, 1.1, 1.0, 1.1, 1.0, 1.1]
    seconds = table(flat, noise=0.2).round_seconds(1, 1, 7, 0)
    assert not seconds.resolved
    assert seconds.drafted == pytest.approx(flat)


def test_a_window_is_judged_by_its_own_points() -> None:
    """Steep behind, flat before: rounds of one request look at the flat part."""
    hinge = replace(table([1.0, 1.02, 1.0, 1.02, 1.0, 1.3, 1.6, 1.9], noise=0.5))
    assert not hinge.round_seconds(1, 1, 4, 0).resolved
    assert hinge.round_seconds(1, 1, 7, 0).resolved


def test_a_line_goes_on_in_proportion_beyond_the_last_size() -> None:
    drafted = table(JAGGED, noise=0.2).round_seconds(1, 1, 15, 0).drafted
    assert drafted[15] == pytest.approx(2 * drafted[7])


def test_beyond_the_last_context_the_last_one_is_the_evidence() -> None:
    """Extrapolation makes the noise of two contexts look like a slope."""
    flat = [1.0, 1.05, 0.98, 1.03, 1.0, 1.04, 0.97, 1.02]
    both = CostTable(tuple(range(1, 9)), (10, 20), (tuple(flat), tuple(JAGGED[::-1])), (1,), (0.0,), noise=0.2)
    assert not both.round_seconds(1, 1, 7, 500).resolved
    rising = replace(both, verify_seconds=(tuple(flat), tuple(JAGGED)))
    assert rising.round_seconds(1, 1, 7, 500).resolved
