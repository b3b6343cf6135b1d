"""Flat curves count as flat in about 19 profiles of 20, whatever disturbs them; a real slope is found."""

import numpy as np
import pytest

from benchmarks.noise_gate import DISTURBANCES, rate

TRIALS = 200
MOST = 20
"""Of 200: a true rate of 5 % exceeds it once in a hundred cases, and the rates before this gate always do."""

every_disturbance = pytest.mark.parametrize("name", DISTURBANCES)


@every_disturbance
@pytest.mark.parametrize(("points", "turns"), [(2, 4), (8, 4), (8, 10), (22, 4)])
def test_noise_is_not_taken_for_a_shape(name: str, points: int, turns: int) -> None:
    assert rate(DISTURBANCES[name], points, turns, 0.0, TRIALS, seed=points + turns) * TRIALS <= MOST


@every_disturbance
def test_a_slope_is_found(name: str) -> None:
    assert rate(DISTURBANCES[name], 8, 10, 0.3, TRIALS, seed=1) >= 0.95


def test_a_gate_of_one_width_would_fail() -> None:
    """What is tested is the width: at half of it, most long flat curves would have a shape."""
    from dspark.engine.timing_turns import common_noise, timing
    from dspark.scheduling.cost_table import flat_range

    random = np.random.default_rng(0)
    ranges = []
    for _ in range(TRIALS):
        timed = [timing(runs) for runs in DISTURBANCES["normal, 3 %"](random, (22, 4)).tolist()]
        seconds = [point.seconds for point in timed]
        ranges.append((max(seconds) / min(seconds) - 1) / common_noise(timed))
    assert np.mean(np.array(ranges) >= flat_range(22) / 2) > 0.5
