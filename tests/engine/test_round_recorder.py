"""Records of real rounds: what the loop did is what they say."""

import numpy as np
import torch

from dspark.calibration.logistic import HEADLESS, LogisticSurvival
from dspark.calibration.records import DraftMode
from dspark.calibration.signals import RoundHistory, peak_log_odds
from dspark.core.admission import DraftPrefix
from dspark.core.hashed_law import HashedLaw
from dspark.core.tau import Round
from dspark.drafters.fake import FakeDrafter
from dspark.engine.estimated import EstimatedConfidence
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.round_recorder import RequestLabel, RoundRecorder, draft_mode
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams

V, ORDER, GAMMA, PROMPT = 6, 2, 3, (0, 3, 1, 4)
PARAMS = SamplingParams(temperature=1.0, max_tokens=30, seed=7)
LABEL = RequestLabel(5, "math", DraftMode.SAMPLED, 1.0)


def target(**options):
    return FakeTarget(HashedLaw(V, 1, ORDER), V, ORDER, **options)


def drafter(**options):
    return FakeDrafter(HashedLaw(V, 1, 1), V, GAMMA, 2 * (ORDER + 2), **options)


def test_records_hold_every_round_in_order():
    recorder = RoundRecorder(LABEL, GAMMA)
    loop = ReferenceLoop(target(), drafter(confidence=lambda tokens: float(tokens[-1])))
    lengths = [len(commit.token_ids) for commit in loop.start(PROMPT, PARAMS, observer=recorder)]
    records = recorder.records()
    assert records.position.tolist() == np.cumsum(lengths)[:-1].tolist()
    assert (records.accepted[:-1] + 1).tolist() == lengths[1:-1]
    assert (records.judged == GAMMA).all()
    history, expected = RoundHistory(), []
    for accepted in records.accepted.tolist():
        expected.append(history.value)
        history.update(accepted)
    assert records.history.tolist() == expected
    assert set(records.request.tolist()) == {5}
    assert set(records.domain.tolist()) == {"math"}


def test_peak_and_confidence_are_those_of_the_slot():
    recorder = RoundRecorder(LABEL, 2)
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    for row, confidence in zip(rows, (0.5, -1.5), strict=True):
        recorder.slot(row, confidence)
    recorder.judged(Round(2, 2, 1, 2))
    records = recorder.records()
    assert records.confidence.tolist() == [[0.5, -1.5]]
    np.testing.assert_allclose(records.peak[0], peak_log_odds(rows.numpy()), rtol=1e-6)


def test_without_a_head_there_is_no_confidence():
    recorder = RoundRecorder(LABEL, 1)
    recorder.slot(torch.zeros(3), None)
    recorder.judged(Round(1, 1, 0, 1))
    assert recorder.records().signals.confidence is None


def test_trimmed_rounds_are_left_out():
    recorder = RoundRecorder(LABEL, GAMMA)
    loop = ReferenceLoop(target(), drafter(), DecodeOptions(admits=lambda prefix: len(prefix.tokens) < 2))
    loop.generate(PROMPT, PARAMS, observer=recorder)
    assert len(recorder.records()) == 0


def test_an_accepted_end_token_ends_what_was_judged():
    def count_up(tokens):
        return torch.nn.functional.one_hot(torch.tensor((tokens[-1] + 1) % V), V).float()

    loop = ReferenceLoop(
        FakeTarget(count_up, V, ORDER, eos_token_ids=(3,)), FakeDrafter(count_up, V, GAMMA, 2 * (ORDER + 2))
    )
    recorder = RoundRecorder(LABEL, GAMMA)
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
    weights = tuple((0.1 * k, 1.0, -0.5, 0.3) for k in range(GAMMA))
    estimator = LogisticSurvival(HEADLESS, weights)
    prefixes: list[DraftPrefix] = []

    def note(prefix: DraftPrefix) -> bool:
        prefixes.append(prefix)
        return True

    recorder = RoundRecorder(LABEL, GAMMA)
    wrapped = EstimatedConfidence(drafter(), estimator)
    result = ReferenceLoop(target(), wrapped, DecodeOptions(admits=note)).generate(PROMPT, PARAMS, observer=recorder)
    records = recorder.records()
    np.testing.assert_allclose(records.confidence, estimator.conditional_logits(records.signals), rtol=1e-5)
    whole = [prefix.confidences for prefix in prefixes if len(prefix.confidences) == GAMMA]
    np.testing.assert_allclose(whole, records.confidence, rtol=1e-5)
    assert result.token_ids == ReferenceLoop(target(), drafter()).generate(PROMPT, PARAMS).token_ids
