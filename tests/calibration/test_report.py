"""The report: agreed shape, figures of unseen prompts, every domain on its own."""

import math

import numpy as np
import pytest

from dspark.calibration.methods import MethodName
from dspark.calibration.metrics import auroc, expected_calibration_error
from dspark.calibration.records import concatenate, split_by_request
from dspark.calibration.report import calibrate, positions
from dspark.calibration.signals import Source
from dspark.calibration.simulator import SimulatedDrafter
from dspark.calibration.temperature import uncalibrated
from tests.calibration.rounds import records


def simulated(domain: str, ease: float, seed: int):
    drafter = SimulatedDrafter(ease=ease, overconfidence=(1.7, 1.7, 1.7))
    rounds = drafter.run(40, 30, np.random.default_rng(seed)).records
    fields = rounds.arrays() | {"domain": np.full(len(rounds), domain), "request": rounds.request + 1000 * seed}
    return type(rounds)(**fields)


@pytest.fixture(scope="module")
def report():
    rounds = concatenate([simulated("math", 2.0, 1), simulated("chat", 0.5, 2)])
    return calibrate(*split_by_request(rounds))


def test_json_has_the_agreed_shape(report):
    data = report.as_json()
    for key in ("ece_before", "ece_after", "auc"):
        assert len(data[key]) == 3
        assert set(data["domains"]) == {"math", "chat"}
        assert len(data["domains"]["chat"][key]) == 3
    assert data["mean_ece_after"] < 0.5 * data["mean_ece_before"]
    assert data["fit_rounds"] == data["report_rounds"] == 1200
    assert set(data["alternatives"]) == set(MethodName)


def test_domains_differ_as_they_were_made(report):
    math_rate, chat_rate = (report.domains[name].after[0].mean_observed for name in ("math", "chat"))
    assert math_rate > chat_rate + 0.1


def test_slots_after_an_end_token_do_not_count():
    rounds = records([1, 0, 3], judged=np.array([1, 3, 3]), confidence=np.array([[1.0, 9, 9], [0, 0, 0], [2, 2, 2]]))
    first, second, third = positions(uncalibrated(3), rounds)
    assert [one.rounds for one in (first, second, third)] == [3, 2, 2]
    survival = uncalibrated(3).survival(rounds.signals)[1:, 1]
    assert second.ece == expected_calibration_error(survival, np.array([0.0, 1.0]))
    assert second.auc == auroc(survival, np.array([0.0, 1.0])) == 1.0


def test_a_position_that_was_never_judged_has_no_figures():
    rounds = records([1, 1], judged=np.array([1, 1]))
    second = positions(uncalibrated(3), rounds)[1]
    assert second.rounds == 0
    assert all(map(math.isnan, (second.ece, second.ece_floor, second.auc, second.brier, second.mean_predicted)))


def test_exact_chances_rank_better_than_a_noisy_head(report):
    heads = [one.auc for one in report.overall.before]
    assert report.oracle is not None
    for exact, head in zip([one.auc for one in report.oracle], heads, strict=True):
        assert exact > head
    assert report.as_json()["oracle"]["auc"] == [one.auc for one in report.oracle]


def test_where_chances_are_unknown_there_is_no_oracle():
    unknown = records([0, 1, 2, 3] * 10, overlap=np.full((40, 3), np.nan))
    assert calibrate(unknown, unknown).oracle is None


def test_without_peaks_the_logistic_alternative_is_left_out():
    rounds = records([0, 1, 2, 3] * 5, peak=np.full((20, 3), np.nan))
    assert set(calibrate(rounds, rounds).alternatives) == {"sts", "isotonic"}


def test_without_a_head_the_raw_figures_are_those_of_the_peaks():
    rounds = simulated("math", 1.0, 3)
    rounds = type(rounds)(**rounds.arrays() | {"confidence": np.full_like(rounds.confidence, np.nan)})
    found = calibrate(*split_by_request(rounds))
    peaks = positions(uncalibrated(3, Source.PEAK), split_by_request(rounds)[1])
    assert found.as_json()["ece_before"] == [one.ece for one in peaks]
    assert found.as_json()["mean_ece_after"] < found.as_json()["mean_ece_before"]
