"""ECE, AUROC and Brier against scikit-learn, brute force and what can be computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score

from dspark.calibration.metrics import auroc, brier, expected_calibration_error, reliability
from dspark.errors import ConfigError


def coins(seed: int = 0, count: int = 500, digits: int = 3):
    """Predictions with ties, and coins that follow them loosely."""
    rng = np.random.default_rng(seed)
    predicted = rng.random(count).round(digits)
    return predicted, (rng.random(count) < predicted**2).astype(float)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("digits", [1, 2, 9])
def test_auroc_equals_scikit_learn(seed, digits):
    predicted, labels = coins(seed, digits=digits)
    assert auroc(predicted, labels) == pytest.approx(roc_auc_score(labels, predicted), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=12))
def test_auroc_equals_brute_force_over_pairs_with_ties_half(rows):
    scores, labels = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    pairs = [(s > t) + (s == t) / 2 for s in scores[labels == 1] for t in scores[labels == 0]]
    found = auroc(scores, labels)
    assert np.isnan(found) if not pairs else found == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("seed", range(5))
def test_brier_and_reliability_equal_scikit_learn(seed):
    predicted, labels = coins(seed, digits=9)  # no prediction on an edge: scikit-learn puts those in the lower bin
    assert brier(predicted, labels) == pytest.approx(brier_score_loss(labels, predicted))
    bins = reliability(predicted, labels)
    used = bins.counts > 0
    observed, mean_predicted = calibration_curve(labels, predicted, n_bins=20)
    np.testing.assert_allclose(bins.observed[used] / bins.counts[used], observed)
    np.testing.assert_allclose(bins.predicted[used] / bins.counts[used], mean_predicted)
    weights = bins.counts[used] / bins.counts.sum()
    assert bins.ece == pytest.approx((weights * abs(observed - mean_predicted)).sum())


def test_ece_by_hand():
    predicted = np.array([0.0, 0.04, 0.5, 0.54, 1.0])
    labels = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    # Bins 0, 10 and 19: |0.02 - 0.5| * 2/5 + |0.52 - 0.5| * 2/5 + |1 - 1| * 1/5.
    assert expected_calibration_error(predicted, labels) == pytest.approx(0.2)


def test_the_floor_is_the_mean_ece_of_exact_predictions():
    rng = np.random.default_rng(1)
    predicted = rng.beta(1, 3, 4000)
    eces = [expected_calibration_error(predicted, (rng.random(4000) < predicted).astype(float)) for _ in range(200)]
    floor = reliability(predicted, np.zeros(4000)).ece_floor
    # 200 repetitions: the mean's standard error is 1 % of it; 5 of them, and small bins are not quite normal.
    assert np.mean(eces) == pytest.approx(floor, rel=0.05)


@pytest.mark.parametrize(
    ("predicted", "labels"),
    [([], []), ([0.5], [0.5, 1.0]), ([np.nan], [1.0]), ([1.5], [1.0]), ([0.5], [np.nan]), ([0.5], [0.5])],
)
def test_bad_input_is_refused(predicted, labels):
    for metric in (brier, expected_calibration_error):
        with pytest.raises(ConfigError, match="predictions|labels"):
            metric(np.array(predicted), np.array(labels))
