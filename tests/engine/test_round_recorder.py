"""Records of real rounds: what the loop did is what they say."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from dspark.calibration.exploration import RoundLottery
from dspark.calibration.logistic import HEADLESS, Feature, LogisticSurvival
from dspark.calibration.records import DraftMode
from dspark.calibration.signals import RoundHistory, law_entropy, peak_log_odds
from dspark.core.admission import DraftPrefix
from dspark.core.hashed_law import HashedLaw
from dspark.core.tau import Round
from dspark.drafters.fake import FakeDrafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.estimated import EstimatedConfidence
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.round_recorder import RequestLabel, RoundRecorder, draft_mode, every_round
from dspark.errors import ConfigError
from dspark.evaluation.record_rounds import RecordingDecoder
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams

V, ORDER, GAMMA, PROMPT = 6, 2, 3, (0, 3, 1, 4)
PARAMS = SamplingParams(temperature=1.0, max_tokens=30, seed=7)
LOTTERY = RoundLottery(0.5, seed=2)
LABEL = RequestLabel(5, "math", DraftMode.SAMPLED, 1.0)


def target(**options):
    return FakeTarget(HashedLaw(V, 1, ORDER), V, ORDER, **options)


def drafter(**options):
    return FakeDrafter(HashedLaw(V, 1, 1), V, GAMMA, 2 * (ORDER + 2), **options)


def test_records_hold_every_round_in_order():
    recorder = RoundRecorder(LABEL, GAMMA, every_round)
    loop = ReferenceLoop(target(), drafter(confidence=lambda tokens: float(tokens[-1])))
    lengths = [len(commit.token_ids) for commit in loop.start(PROMPT, PARAMS, observer=recorder)]
    records = recorder.records()
    assert records.position.tolist() == np.cumsum(lengths)[:-1].tolist()
    assert (records.accepted[:-1] + 1).tolist() == lengths[1:-1]
    assert (records.judged == GAMMA).all()
    history, expected = RoundHistory(), []
    for accepted in records.accepted.tolist():
        expected.append(history.value)
        history.update(accepted, GAMMA)
    np.testing.assert_allclose(records.history, expected, rtol=1e-6)
    assert set(records.request.tolist()) == {5}
    assert set(records.domain.tolist()) == {"math"}


def test_peak_and_confidence_are_those_of_the_slot():
    recorder = RoundRecorder(LABEL, 2, every_round)
    assert recorder.full_width(1)
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    for row, confidence in zip(rows, (0.5, -1.5), strict=True):
        recorder.slot(row, confidence)
    recorder.judged(Round(2, 2, 1, 2))
    records = recorder.records()
    assert records.confidence.tolist() == [[0.5, -1.5]]
    np.testing.assert_allclose(records.peak[0], peak_log_odds(rows.numpy()), rtol=1e-3)
    np.testing.assert_allclose(records.entropy[0], law_entropy(rows.numpy()), rtol=1e-3)


def test_overlap_is_the_chance_that_a_draft_of_the_slot_is_accepted():
    recorder = RoundRecorder(LABEL, GAMMA, every_round)
    loop = ReferenceLoop(target(), drafter())
    for seed in range(150):
        loop.generate(PROMPT, replace(PARAMS, seed=seed), observer=recorder)
    records = recorder.records()
    for k in range(GAMMA):  # each slot among the rounds that reached it
        reached = records.accepted >= k
        expected, found = records.overlap[reached, k].mean(), (records.accepted[reached] > k).mean()
        assert abs(found - expected) < 4 * np.sqrt(0.25 / reached.sum())
    spread = records.overlap[:, 0]
    assert spread.std() > 0.05  # a constant would pass the test above
    likely = records.accepted[spread > np.median(spread)] > 0
    assert likely.mean() > (records.accepted[spread <= np.median(spread)] > 0).mean() + 0.05


def test_greedy_rounds_have_no_overlap():
    recorder = RoundRecorder(LABEL, GAMMA, every_round)
    ReferenceLoop(target(), drafter()).generate(PROMPT, replace(PARAMS, temperature=0.0), observer=recorder)
    assert np.isnan(recorder.records().overlap).all()


def test_without_a_head_there_is_no_confidence():
    recorder = RoundRecorder(LABEL, 1, every_round)
    assert recorder.full_width(1)
    recorder.slot(torch.zeros(3), None)
    recorder.judged(Round(1, 1, 0, 1))
    assert recorder.records().signals.confidence is None


def head(tokens) -> float:
    """A confidence that depends on the tokens before the slot, and for half of them trims there."""
    return float(tokens[-1]) - 2.5


def trims(prefix: DraftPrefix) -> bool:
    return prefix.confidences[-1] > 0


def test_a_loop_that_trims_records_what_one_that_does_not_would():
    """Catches named rounds that the schedule trims all the same: their confidences would choose what is kept.

    At temperature 0 both loops write the same text, so a round that begins at the same position is the same round.
    """
    params = SamplingParams(max_tokens=60)
    every, named = (RoundRecorder(LABEL, GAMMA, one) for one in (every_round, partial(LOTTERY.draws, LABEL.request)))
    whole = ReferenceLoop(target(max_positions=80), drafter(confidence=head)).generate(PROMPT, params, observer=every)
    loop = ReferenceLoop(target(max_positions=80), drafter(confidence=head), DecodeOptions(admits=trims))
    commits = list(generation := loop.start(PROMPT, params, observer=named))
    assert generation.finish().token_ids == whole.token_ids
    starts = np.cumsum([len(commit.token_ids) for commit in commits])[:-1].tolist()
    kept = [position for position in starts if LOTTERY.draws(LABEL.request, position)]
    assert named.records().position.tolist() == kept
    expected, found = every.records(), named.records()
    both = sorted(set(kept) & set(expected.position.tolist()))
    assert len(both) > 5
    assert (found.confidence <= 0).any()  # rounds that the policy would have trimmed
    for name in ("confidence", "peak", "accepted", "judged"):
        a, b = (getattr(one, name)[np.isin(one.position, both)] for one in (found, expected))
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_first_rounds_of_many_requests_do_not_depend_on_trimming():
    """At temperature 1 texts part after a trimmed round, but the first round of a request is the same in both loops."""
    loops = [
        ReferenceLoop(target(), drafter(confidence=head), DecodeOptions(**options))
        for options in ({}, {"admits": trims})
    ]
    for request in range(60):
        first = []
        for loop in loops:
            label = replace(LABEL, request=request)
            recorder = RoundRecorder(label, GAMMA, partial(LOTTERY.draws, request))
            loop.generate(PROMPT, replace(PARAMS, seed=request, max_tokens=2), observer=recorder)
            first.append(recorder.records())
        named = LOTTERY.draws(request, 1)
        assert [len(one) for one in first] == [named, named]
        for name, value in first[0].arrays().items():
            np.testing.assert_array_equal(getattr(first[1], name), value, err_msg=name)


def test_a_named_round_that_comes_back_narrower_is_an_error():
    recorder = RoundRecorder(LABEL, GAMMA, every_round)
    with pytest.raises(ConfigError, match=r"position 1 .* 3 drafts, but it has 2.*max_draft_tokens"):
        ReferenceLoop(target(), drafter(), DecodeOptions(max_draft_tokens=2)).generate(
            PROMPT, PARAMS, observer=recorder
        )


def test_at_the_end_of_the_context_no_round_is_named():
    recorder = RoundRecorder(LABEL, GAMMA, every_round)
    loop = ReferenceLoop(target(max_positions=20), drafter())
    result = loop.generate(PROMPT, replace(PARAMS, max_tokens=100), observer=recorder)
    assert len(result.token_ids) == 20 - len(PROMPT)
    narrower = sum(entry.verified < GAMMA for entry in result.tally.entries.elements())
    assert 0 < narrower == result.tally.rounds - len(recorder.records())
    assert recorder.records().position.max() + len(PROMPT) + GAMMA <= 20


def test_copied_rounds_leave_positions_in_step():
    """Catches a position counted from the rounds that the recorder is told of."""
    recorder = RoundRecorder(LABEL, GAMMA, partial(LOTTERY.draws, LABEL.request))
    loop = ReferenceLoop(target(max_positions=300), drafter(), DecodeOptions(lookup=PromptLookup(2, match=3)))
    generation = loop.start(PROMPT, replace(PARAMS, max_tokens=200), observer=recorder)
    starts = set(np.cumsum([len(commit.token_ids) for commit in generation])[:-1].tolist())
    result, found = generation.finish(), recorder.records().position.tolist()
    assert 0 < result.lookup_rounds < result.tally.rounds
    assert len(found) > 3
    assert set(found) <= {start for start in starts if LOTTERY.draws(LABEL.request, start)}


def test_only_rounds_named_before_drafting_are_kept():
    """Catches a recorder that keeps what a schedule verified in full of its own accord: censored data."""
    lottery = RoundLottery(0.3, seed=2)
    named = partial(lottery.draws, LABEL.request)
    some, all_rounds = RoundRecorder(LABEL, GAMMA, named), RoundRecorder(LABEL, GAMMA, every_round)
    loop = ReferenceLoop(target(), drafter())
    for recorder in (some, all_rounds):
        loop.generate(PROMPT, PARAMS, observer=recorder)
    expected = all_rounds.records()
    chosen = np.array([named(position) for position in expected.position.tolist()])
    assert 0 < chosen.sum() < len(chosen)
    for name, value in expected.take(chosen).arrays().items():
        np.testing.assert_array_equal(getattr(some.records(), name), value, err_msg=name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("admits", trims), ("lookup", PromptLookup()), ("max_draft_tokens", GAMMA - 1)],
    ids=["admits", "lookup", "max_draft_tokens"],
)
def test_the_recording_decoder_refuses_loops_whose_rounds_are_not_all_the_drafters_in_full(name, value):
    with pytest.raises(ConfigError, match=name):
        RecordingDecoder(ReferenceLoop(target(), drafter(), DecodeOptions(**{name: value})), None, PARAMS)


def test_an_accepted_end_token_ends_what_was_judged():
    def count_up(tokens):
        return torch.nn.functional.one_hot(torch.tensor((tokens[-1] + 1) % V), V).float()

    loop = ReferenceLoop(
        FakeTarget(count_up, V, ORDER, eos_token_ids=(3,)), FakeDrafter(count_up, V, GAMMA, 2 * (ORDER + 2))
    )
    recorder = RoundRecorder(LABEL, GAMMA, every_round)
    result = loop.generate((0,), SamplingParams(max_tokens=30), observer=recorder)
    assert result.token_ids == (1, 2, 3)
    records = recorder.records()
    assert (records.accepted.tolist(), records.judged.tolist()) == ([2], [2])


def test_drafts_at_temperature_zero_are_greedy():
    assert draft_mode(DecodeOptions(), SamplingParams()) is DraftMode.GREEDY
    assert draft_mode(DecodeOptions(), PARAMS) is DraftMode.SAMPLED
    assert draft_mode(DecodeOptions(greedy_drafts=True), PARAMS) is DraftMode.GREEDY


def test_an_estimator_gives_a_headless_drafter_the_confidences_that_its_records_would_get():
    """Catches a history or peak that the wrapper sees at another time than the recorder does."""
    weights = tuple((0.1 * k, 1.0, -0.5, 0.3, -0.2) for k in range(GAMMA))
    estimator = LogisticSurvival(HEADLESS, weights)
    prefixes: list[DraftPrefix] = []

    def note(prefix: DraftPrefix) -> bool:
        prefixes.append(prefix)
        return True

    recorder = RoundRecorder(LABEL, GAMMA, every_round)
    wrapped = EstimatedConfidence(drafter(), estimator)
    ReferenceLoop(target(), wrapped).generate(PROMPT, PARAMS, observer=recorder)
    result = ReferenceLoop(target(), wrapped, DecodeOptions(admits=note)).generate(PROMPT, PARAMS)
    records = recorder.records()
    # Records keep peaks and entropies in half precision.
    np.testing.assert_allclose(records.confidence, estimator.conditional_logits(records.signals), rtol=2e-3, atol=2e-3)
    whole = [prefix.confidences for prefix in prefixes if len(prefix.confidences) == GAMMA]
    np.testing.assert_allclose(whole, records.confidence, rtol=1e-5)
    assert result.token_ids == ReferenceLoop(target(), drafter()).generate(PROMPT, PARAMS).token_ids


def served_histories(threshold: float) -> list[float]:
    """Histories of a served estimator, slots after the first being trimmed where confidence is below `threshold`.

    The confidence is the history itself. Target and drafter have constant laws that overlap by 0.6.
    """
    seen: list[float] = []

    def admits(prefix: DraftPrefix) -> bool:
        seen.append(float(prefix.confidences[-1]))
        return prefix.confidences[-1] >= threshold or not prefix.tokens

    estimator = LogisticSurvival((Feature.HISTORY,), ((0.0, 1.0),) * GAMMA)
    p_t, p_d = torch.tensor([0.6, 0.4]).log(), torch.tensor([0.2, 0.8]).log()
    loop = ReferenceLoop(
        FakeTarget(lambda tokens: p_t, 2, ORDER, max_positions=600),
        EstimatedConfidence(FakeDrafter(lambda tokens: p_d, 2, GAMMA, 2 * (ORDER + 2)), estimator),
        DecodeOptions(admits=admits),
    )
    loop.generate((0,), SamplingParams(temperature=1.0, max_tokens=500, seed=3))
    return seen


@pytest.mark.parametrize("threshold", [0.0, 0.6, 1.1], ids=["free", "by history", "always one"])
def test_trimming_does_not_move_the_history(threshold):
    """Catches a history of accepted lengths: rounds trimmed to one draft would make it sink, and trim the next."""
    # Some 500 drafts tried, each passing with chance 0.6: standard error 0.022, 3.5 of them.
    assert np.mean(served_histories(threshold)) == pytest.approx(0.6, abs=0.077)
