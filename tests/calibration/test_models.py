"""Survival models: what they recover, what they never break, and how far they are from knowing the chances."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from dspark.calibration.isotonic import IsotonicMap, IsotonicSurvival, fit_isotonic, isotonic_map, pool_violators
from dspark.calibration.logistic import ALL_FEATURES, HEADLESS, Feature, LogisticSurvival, fit_logistic, newton_fit
from dspark.calibration.metrics import auroc, brier, expected_calibration_error
from dspark.calibration.online import OnlineLogistic
from dspark.calibration.oracle import Oracle
from dspark.calibration.records import split_by_request
from dspark.calibration.signals import RoundHistory, Signals, Source, law_entropy, peak_log_odds, sigmoid
from dspark.calibration.simulator import SimulatedDrafter
from dspark.calibration.temperature import SequentialTemperature, fit_temperatures, uncalibrated
from dspark.core.conditionals import conditionals
from dspark.errors import ConfigError
from tests.calibration.rounds import records

SIMULATION = SimulatedDrafter().run(requests=120, rounds=60, rng=np.random.default_rng(0))
FIT, REPORT = split_by_request(SIMULATION.records)
ORACLE = Oracle(SIMULATION.true_survival[np.isin(SIMULATION.records.request, REPORT.request)])
FITTED = {
    "sts": fit_temperatures(FIT),
    "isotonic": fit_isotonic(FIT),
    "logistic": fit_logistic(FIT),
    "headless": fit_logistic(FIT, HEADLESS),
}


IDENTITY = IsotonicMap((0.0, 1.0), (0.0, 1.0))


def mean_over_positions(metric, model) -> float:
    survival = model.survival(REPORT.signals)
    return float(np.mean([metric(survival[:, k], REPORT.labels[:, k]) for k in range(REPORT.gamma)]))


def signals_of(*shape: int, seed: int = 0, scale: float = 3.0) -> Signals:
    rng = np.random.default_rng(seed)
    confidence, peak = scale * rng.standard_normal(shape), scale * rng.standard_normal(shape)
    return Signals(confidence, peak, rng.uniform(0, 7, shape[0]), rng.uniform(0, 9, shape))


ONE = np.zeros((1, 1))


def test_sts_recovers_the_temperatures_of_a_head_that_only_exaggerates():
    truth = SimulatedDrafter(overconfidence=(1.5, 2.0, 0.7), head_noise=0.0)
    fitted = fit_temperatures(truth.run(400, 60, np.random.default_rng(1)).records)
    assert fitted.temperatures == pytest.approx((1.5, 2.0, 0.7), rel=0.15)


def test_sts_removes_most_of_the_error_on_prompts_it_has_not_seen():
    before = mean_over_positions(expected_calibration_error, uncalibrated(REPORT.gamma))
    after = mean_over_positions(expected_calibration_error, FITTED["sts"])
    floor = mean_over_positions(expected_calibration_error, ORACLE)
    assert before > 0.07
    assert after < 1.5 * floor


def test_no_model_beats_the_oracle_and_each_is_ranked_honestly():
    best = mean_over_positions(brier, ORACLE)
    scores = {name: mean_over_positions(brier, model) for name, model in FITTED.items()}
    assert min(scores.values()) > best
    assert max(scores.values()) < mean_over_positions(brier, uncalibrated(REPORT.gamma))
    # The simulated head sees more than the draft distribution does.
    assert scores["logistic"] < scores["headless"]
    assert mean_over_positions(auroc, FITTED["headless"]) > 0.72


@pytest.mark.parametrize("name", FITTED)
@given(seed=st.integers(0, 50), scale=st.sampled_from([0.1, 3.0, 30.0]))
def test_survival_is_a_chance_and_never_rises(name, seed, scale):
    survival = FITTED[name].survival(signals_of(5, 7, seed=seed, scale=scale))
    assert ((survival >= 0) & (survival <= 1)).all()
    assert (np.diff(survival, axis=1) <= 0).all()


@pytest.mark.parametrize("name", FITTED)
def test_a_slot_is_judged_by_slots_up_to_it_only(name):
    whole = signals_of(4, 7)
    for width in range(1, 7):
        part = Signals(whole.confidence[:, :width], whole.peak[:, :width], whole.history, whole.entropy[:, :width])
        np.testing.assert_array_equal(FITTED[name].survival(part), FITTED[name].survival(whole)[:, :width])


def test_equal_errors_leave_temperature_one():
    # Logit 0 is 0.5 at every temperature, so all temperatures tie.
    assert fit_temperatures(records([0, 1, 3, 2] * 40)).temperatures == (1.0, 1.0, 1.0)


def test_positions_with_few_survivors_take_the_temperature_before():
    rounds = SimulatedDrafter().run(120, 60, np.random.default_rng(3)).records
    rare = fit_temperatures(replace(rounds, accepted=np.where(rounds.accepted > 3, 3, rounds.accepted))).temperatures
    assert len(set(rare[:3])) == 3
    assert set(rare[2:]) == {rare[2]}


def test_conditionals_multiply_to_survivals_even_at_zero():
    survival = np.array([[0.8, 0.4, 0.4, 0.0, 0.0], [1.0, 1.0, 0.5, 0.25, 0.0]])
    c = conditionals(survival)
    np.testing.assert_allclose(np.cumprod(c, axis=1), survival)
    assert c[0, 4] == 0


def test_unjudged_positions_keep_what_they_had():
    cut = records([1, 0, 1, 0], judged=np.array([1, 1, 1, 1]), confidence=np.ones((4, 3)))
    assert fit_temperatures(cut).temperatures[1:] == (1.0, 1.0)
    survival = fit_isotonic(cut).survival(cut.signals)
    assert survival[0, :2].tolist() == [0.5, 0.5]  # the product of two would be 0.53: clamped
    assert survival[0, 2] == pytest.approx(sigmoid(np.array(1.0)) ** 3, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_isotonic_maps_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.random(300).round(2), (rng.random(300) < 0.4).astype(float)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(x, y)
    grid = np.linspace(-0.1, 1.1, 101)
    np.testing.assert_allclose(isotonic_map(x, y)(grid), theirs.predict(grid), atol=1e-12)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=9))
def test_pooling_gives_an_ordered_sequence_of_the_same_mean(rows):
    means, weights = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    fitted = pool_violators(means, weights)
    assert (np.diff(fitted) >= 0).all()
    assert fitted @ weights == pytest.approx(means @ weights)


def test_newton_equals_scikit_learn():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((400, 3))
    y = (rng.random(400) < sigmoid(x @ [1.0, -2.0, 0.5])).astype(float)
    weights = rng.random(400)
    theirs = LogisticRegression(C=1 / 4, fit_intercept=False, tol=1e-10).fit(x, y, weights)
    np.testing.assert_allclose(newton_fit(x, y, weights, np.zeros(3), 4.0), theirs.coef_[0], atol=1e-4)


def test_newton_survives_a_perfect_predictor():
    x = np.array([[1.0, -50.0], [1.0, 50.0]])
    fitted = newton_fit(x, np.array([0.0, 1.0]), np.ones(2), np.zeros(2), 0.01)
    assert np.isfinite(fitted).all()
    assert fitted[1] > 0


def test_learning_online_comes_near_the_offline_fit():
    online = OnlineLogistic(REPORT.gamma, HEADLESS)
    online.update(FIT)
    assert mean_over_positions(brier, online.model) < mean_over_positions(brier, FITTED["headless"]) + 0.002


def test_online_follows_a_change():
    signals = {"peak": np.zeros((600, 1)), "confidence": np.full((600, 1), np.nan)}
    online = OnlineLogistic(1, (Feature.PEAK,), memory=100)
    for accepted, expected in (([1] * 600, 0.95), ([0] * 600, 0.05)):
        online.update(records(accepted, gamma=1, **signals))
        chance = online.model.survival(Signals(peak=np.zeros((1, 1))))[0, 0]
        assert abs(chance - expected) < 0.06


@pytest.mark.parametrize("fit", [fit_temperatures, fit_isotonic])
def test_a_model_reads_what_it_was_fitted_on_and_nothing_else(fit):
    """Catches a model of head logits that takes peaks for them: chances that look right and are those of another."""
    headless = replace(FIT, confidence=np.full_like(FIT.confidence, np.nan))
    with_head, without = fit(FIT), fit(headless)
    assert (with_head.source, without.source) == (Source.CONFIDENCE, Source.PEAK)
    both = REPORT.signals
    only_peaks, only_head = Signals(peak=both.peak), Signals(confidence=both.confidence)
    np.testing.assert_array_equal(with_head.survival(both), with_head.survival(only_head))
    np.testing.assert_array_equal(without.survival(both), without.survival(only_peaks))
    for model, signals, missing in ((with_head, only_peaks, "confidence"), (without, only_head, "peak")):
        with pytest.raises(ConfigError, match=f"no `{missing}`"):
            model.survival(signals)


def test_peaks_are_log_odds_of_the_largest_probability():
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]]))
    np.testing.assert_allclose(peak_log_odds(logits + 5), [np.log(0.7 / 0.3), 0.0], atol=1e-12)
    assert peak_log_odds(np.array([0.0, -np.inf, -90.0])) == 16.0
    assert peak_log_odds(np.zeros(4)) == pytest.approx(-np.log(3))


def test_entropies_are_those_of_the_law():
    p = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25]])
    np.testing.assert_allclose(law_entropy(np.log(p) + 5), -(p * np.log(p)).sum(-1), atol=1e-12)
    assert law_entropy(np.array([0.0, -np.inf, 0.0])) == pytest.approx(np.log(2))


def test_an_entropy_that_tells_more_than_the_peak_helps():
    fields = {name: value for name, value in FIT.arrays().items() if name != "entropy"}
    exact = type(FIT)(**fields, entropy=FIT.overlap)
    plain, told = (fit_logistic(one, HEADLESS).survival(one.signals)[:, 0] for one in (FIT, exact))
    assert auroc(told, FIT.labels[:, 0]) > auroc(plain, FIT.labels[:, 0]) + 0.02


def test_history_forgets():
    history = RoundHistory()
    assert history.value == 0.5
    for _ in range(100):
        history.update(3, 7)
    assert history.value == pytest.approx(3 / 4, abs=1e-3)
    history.update(0, 7)
    assert 0.7 < history.value < 3 / 4
    before = history.value
    history.update(0, 0)
    assert history.value == before


def test_history_means_the_same_at_every_width():
    """Catches accepted lengths, which trimming lowers, and accepted over verified drafts, which it raises."""
    drafter = SimulatedDrafter(ease=0.8, slope=0.0, request_spread=0.0, slot_spread=0.0)
    accepted = drafter.run(1, 8000, np.random.default_rng(5)).records.accepted
    values = []
    for width in (1, 2, 7):
        history = RoundHistory(decay=1.0)
        for count in np.minimum(accepted, width).tolist():
            history.update(count, width)
        values.append(history.value)
    # The chance is 0.69 for every draft; 8000 coins: standard error 0.0052, 4 of them.
    assert values == pytest.approx([float(sigmoid(np.array(0.8)))] * 3, abs=0.021)


@pytest.mark.parametrize(
    ("model", "signals", "word"),
    [
        (uncalibrated(2), Signals(np.array([[np.nan, 0.0]])), "confidence"),
        (uncalibrated(2), Signals(peak=np.zeros((1, 2))), "no `confidence`"),
        (uncalibrated(2, Source.PEAK), Signals(np.zeros((1, 2))), "no `peak`"),
        (IsotonicSurvival((IDENTITY,) * 2), Signals(peak=np.zeros((1, 2))), "no `confidence`"),
        (IsotonicSurvival((IDENTITY,) * 2, Source.PEAK), Signals(np.zeros((1, 2))), "no `peak`"),
        (uncalibrated(2), Signals(np.zeros((1, 3))), "3 slots.*2 positions"),
        (
            LogisticSurvival(ALL_FEATURES, ((0.0,) * 6,)),
            Signals(None, np.zeros((1, 1)), np.ones(1), np.zeros((1, 1))),
            "confid",
        ),
        (LogisticSurvival(HEADLESS, ((0.0,) * 5,)), Signals(peak=np.zeros((1, 1))), "history"),
        (LogisticSurvival(HEADLESS, ((0.0,) * 5,)), Signals(None, ONE, np.ones(1)), "entropy"),
        (LogisticSurvival(HEADLESS, ((0.0,) * 5,)), Signals(history=np.ones(1)), "peak"),
    ],
)
def test_unusable_signals_are_named(model, signals, word):
    with pytest.raises(ConfigError, match=word):
        model.survival(signals)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ((0.0, 1.0), (0.5,), "2 x and 1 y"),
        ((), (), "x of an isotonic map"),
        ((0.5, 0.2), (0.1, 0.2), "x of an isotonic map"),
        ((0.2, 0.5), (0.2, 0.1), "y of an isotonic map"),
        ((0.0, float("nan")), (0.0, 1.0), "x of an isotonic map"),
        ((0.0, 1.0), (float("nan"), 1.0), "y of an isotonic map"),
        ((0.0, 1.1), (0.0, 1.0), "x of an isotonic map"),
        ((0.0, 1.0), (-0.1, 1.0), "y of an isotonic map"),
    ],
    ids=str,
)
def test_maps_that_are_not_isotonic_or_no_chances_are_refused(x, y, words):
    with pytest.raises(ConfigError, match=words):
        IsotonicMap(x, y)


def test_isotonic_survival_needs_a_position():
    with pytest.raises(ConfigError, match="maps"):
        IsotonicSurvival(())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (
            {"gamma": 7, "start": LogisticSurvival((Feature.PEAK,), ((0.0, 0.0),) * 2)},
            "start knows 2 positions and gamma is 7",
        ),
        ({"gamma": 0}, "gamma"),
        ({"gamma": 2, "memory": 0.1}, "memory"),
        ({"gamma": 2, "memory": float("nan")}, "memory"),
        ({"gamma": 2, "prior_strength": 0.0}, "prior_strength"),
    ],
    ids=str,
)
def test_online_learning_refuses_what_cannot_work(arguments, word):
    with pytest.raises(ConfigError, match=word):
        OnlineLogistic(**arguments)


def test_online_learning_goes_on_from_its_start():
    start = FITTED["logistic"]
    assert OnlineLogistic(REPORT.gamma, start=start).model == start


def test_unusable_parameters_are_refused():
    for temperatures in ((), (1.0, 0.0), (float("nan"),), (float("inf"),)):
        with pytest.raises(ConfigError, match="temperatures"):
            SequentialTemperature(temperatures)
    for weights in ((), ((1.0,),), ((0.0, 0.0, 0.0, 0.0, float("nan")),)):
        with pytest.raises(ConfigError, match="weights"):
            LogisticSurvival(HEADLESS, weights)
