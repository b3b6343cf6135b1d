"""The threshold sweep's arithmetic, by hand and against the scheduler that it stands for."""

import numpy as np
import pytest

from benchmarks.threshold_sweep import SweepPoint, sweep, sweep_point
from dspark.calibration import conditionals
from dspark.calibration.simulator import SimulatedDrafter
from tests.calibration.rounds import records

C = np.array([[0.9, 0.4, 0.8], [0.2, 0.9, 0.9], [0.6, 0.6, 0.6]])


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.0, SweepPoint(0.0, 1.0, 4 / 9, 1 + 4 / 3)),
        (0.5, SweepPoint(0.5, 4 / 9, 2 / 4, 1 + 2 / 3)),  # widths 1, 0, 3: a later confident slot does not count
        (0.7, SweepPoint(0.7, 1 / 9, 1.0, 1 + 1 / 3)),
        (0.95, SweepPoint(0.95, 0.0, None, 1.0)),
    ],
)
def test_a_block_is_verified_up_to_its_first_unsure_draft(threshold, expected):
    assert sweep_point(records([2, 1, 1]), C, threshold) == expected


def test_drafts_after_an_accepted_end_token_do_not_count():
    point = sweep_point(records([1, 3, 0], judged=np.array([1, 3, 3])), np.ones((3, 3)), 0.5)
    assert point == SweepPoint(0.5, 1.0, 4 / 7, 1 + 4 / 3)


def test_domains_are_swept_apart_and_together():
    curves = sweep(records([3, 0, 0], domain=np.array(["math", "chat", "chat"])), C, (0.0,))
    assert {name: points[0].acceptance for name, points in curves.items()} == {"chat": 0, "math": 1, "all": 3 / 9}


def test_with_true_chances_acceptance_rises_with_the_threshold():
    simulation = SimulatedDrafter().run(60, 30, np.random.default_rng(0))
    curve = sweep(simulation.records, conditionals(simulation.true_survival))["simulated"]
    rates = [point.acceptance for point in curve]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0] + 0.2
    verified = [point.verified for point in curve]
    assert verified == sorted(verified, reverse=True)
