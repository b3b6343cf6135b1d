"""Answers written side by side are those of the loop without a drafter, however many run at once."""

import pytest

from dspark.data.answer_source import Backlog, Failure, Outcome, Question, Reply, SamplingSettings
from dspark.data.transcript import RenderedPrompt
from dspark.engine.reference import ReferenceLoop
from dspark.engine.side_by_side import SideBySide, sampling_params
from dspark.errors import ConfigError
from dspark.targets.native import NativeTarget
from dspark.types import Target
from tests.data.small import transcriber
from tests.evaluation.tiny import native

EOS = 1
PROMPTS = [(0, 3, 1), (1, 1), (3, 0, 2, 2), (2,), (0, 2), (3,)]


class Adapted:
    """A target that takes one request at a time, as one run by transformers does."""

    def __init__(self, target: NativeTarget) -> None:
        self.info, self.new_cache = target.info, target.new_cache
        self.forward, self.logits = target.forward, target.logits


@pytest.fixture(scope="module")
def target() -> NativeTarget:
    return native(4, (EOS,), seed=8)


def questions(*prompts: tuple[int, ...]) -> list[Question]:
    return [Question(i, 0, (), RenderedPrompt("", ids), 100 + i) for i, ids in enumerate(prompts)]


def answers(target: Target, settings: SamplingSettings, slots: int, *prompts: tuple[int, ...]) -> list[Outcome]:
    source = SideBySide(target, transcriber(), settings, slots)
    outcomes = source.answers(Backlog(questions(*prompts)))
    return sorted(outcomes, key=lambda outcome: outcome.question.index)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 32])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_of_the_loop(target: NativeTarget, temperature: float, slots: int, adapted: bool) -> None:
    settings = SamplingSettings(temperature=temperature, top_p=0.95, max_tokens=12)
    found = answers(Adapted(target) if adapted else target, settings, slots, *PROMPTS)
    reasons = set()
    for outcome in found:
        question, result = outcome.question, outcome.result
        assert isinstance(result, Reply)
        expected = ReferenceLoop(target).generate(question.prompt.token_ids, sampling_params(settings, question.seed))
        assert (result.token_ids, result.finish_reason) == (expected.token_ids, expected.finish_reason)
        assert ((result.token_ids or ())[-1] == EOS) == (result.finish_reason == "stop")
        reasons.add(result.finish_reason)
    assert len(found) == len(PROMPTS)
    assert reasons == {"stop", "length"}


def test_a_prompt_that_does_not_fit_fails_alone(target: NativeTarget) -> None:
    found = answers(target, SamplingSettings(max_tokens=3), 1, (1,), (1,) * target.info.max_positions, (2,))
    assert [type(outcome.result) for outcome in found] == [Reply, Failure, Reply]
    assert "positions" in found[1].result.reason


def test_an_answer_ends_with_the_context(target: NativeTarget) -> None:
    positions = target.info.max_positions
    (outcome,) = answers(target, SamplingSettings(max_tokens=99), 1, (1,) * (positions - 1))
    assert (len(outcome.result.token_ids), outcome.result.finish_reason) == (1, "length")


def test_settings_that_cannot_be_used_are_refused(target: NativeTarget) -> None:
    with pytest.raises(ConfigError, match="top_p"):
        SideBySide(target, transcriber(), SamplingSettings(top_p=2.0))
