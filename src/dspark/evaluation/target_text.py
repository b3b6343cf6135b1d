"""Texts that a target writes by itself, many at a time, with all that replaying a drafter along them needs.

Shapes: P prompt tokens, n text tokens, S = P + n - 1 positions that the target has run over, m taps, d width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.params import check_sampling, has_penalties, is_greedy
from dspark.core.penalties import TokenHistory
from dspark.core.rejection import TokenRejection
from dspark.core.sampling import probabilities
from dspark.engine.request import check_prompt
from dspark.engine.sampler import RequestSampler
from dspark.engine.stops import Detokeniser, Output
from dspark.errors import CapacityError, CompatibilityError, ConfigError
from dspark.types import Cache, RaggedTarget, SamplingParams, TargetInfo, as_ids

ROUNDING = 0.3
"""Logits of one text by kernels of other precisions (keys and values too) differ by a few bfloat16 steps of 1/16; under
another model, its likeliest tokens are off by whole logits."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a text answers: a rendered prompt under sampling parameters, seed included."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class TargetText:
    """The answer to `question`, a few tokens longer than its limit unless a stop token ends it before.

    The last round of a loop may draft beyond the limit, and its acceptances count: hence the overhang.
    `probabilities` [n] is what the target gave each of `token_ids` [n], after temperature and filters.
    """

    question: Question
    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]

    def output(self, info: TargetInfo, detokeniser: Detokeniser | None = None) -> tuple[Output, str]:
        """The answer as a loop would return it: tokens up to where it ends, and their text."""
        output = Output(limit(self.question, info), end_ids(self.question.params, info), (), detokeniser)
        return output, output.take(self.token_ids).text


@dataclass(frozen=True, slots=True)
class Written:
    """A text and the target's features [S, m * d] of all its tokens but the last."""

    text: TargetText
    features: Tensor


@dataclass(frozen=True, slots=True)
class TextWriter:
    """Writes texts with `overhang` tokens beyond the limit, and keeps the features of `taps`.

    A text is the one that the loop without a drafter decodes with the same seed: the same sampler draws it.
    """

    target: RaggedTarget
    taps: tuple[int, ...]
    overhang: int

    @torch.inference_mode()
    def write(self, questions: Sequence[Question]) -> Iterator[Written]:
        """Answer all `questions` side by side; those with the same prompt share its forward and take turns.

        Raises:
            ConfigError: prompt or parameters cannot be used.
            CapacityError: prompt, answer and overhang do not fit the target.
        """
        waiting: dict[tuple[int, ...], list[SamplingParams]] = {}
        for question in questions:
            check_question(question, self.target.info, self.overhang)
            waiting.setdefault(question.prompt_ids, []).append(question.params)
        prompts = {prompt_ids: self._read(prompt_ids, all_params) for prompt_ids, all_params in waiting.items()}
        while any(waiting.values()):
            turn = [Question(prompt_ids, rest.pop(0)) for prompt_ids, rest in waiting.items() if rest]
            yield from self._answer([_Answer(q, prompts[q.prompt_ids], self.target.info) for q in turn])

    def _read(self, prompt_ids: tuple[int, ...], all_params: Sequence[SamplingParams]) -> "_Prompt":
        answers = (limit(Question(prompt_ids, params), self.target.info) for params in all_params)
        cache = self.target.new_cache(len(prompt_ids) + max(answers) + self.overhang)
        output = self.target.forward(as_ids(prompt_ids), cache, self.taps)
        return _Prompt(cache, output.features, self.target.logits(output.last_hidden[-1:]))

    def _answer(self, answers: "list[_Answer]") -> Iterator[Written]:
        for answer in answers:
            answer.prompt.cache.rollback(len(answer.question.prompt_ids))
            answer.take(answer.prompt.logits)
        while answers:
            for answer in answers:
                if answer.is_finished(self.overhang):
                    yield answer.written()
            answers = [answer for answer in answers if not answer.is_finished(self.overhang)]
            if answers:
                self._step(answers)

    def _step(self, answers: "list[_Answer]") -> None:
        last = as_ids([answer.token_ids[-1] for answer in answers])
        output = self.target.forward_ragged(
            last, [answer.prompt.cache for answer in answers], [1] * len(answers), self.taps
        )
        logits = self.target.logits(output.last_hidden)
        for row, answer in enumerate(answers):
            answer.features.append(output.features[row : row + 1])
            answer.take(logits[row : row + 1])

    @torch.inference_mode()
    def read_again(self, text: TargetText, taps: tuple[int, ...]) -> Tensor:
        """Features [S, m * d] of `taps` from one forward over a finished text, which checks the text as well.

        Raises CompatibilityError if the target would not have written it, beyond what rounding explains.
        """
        prompt_ids = text.question.prompt_ids
        tokens = as_ids((*prompt_ids, *text.token_ids[:-1]))
        output = self.target.forward(tokens, self.target.new_cache(len(tokens)), taps)
        gap = float(_surprises(text, self.target.logits(output.last_hidden[len(prompt_ids) - 1 :])).max())
        if not gap < ROUNDING:
            raise CompatibilityError(
                f"a stored text is not what {self.target.info.name} writes: its logits are off by {gap:.2g}, and "
                f"rounding explains {ROUNDING}. Name another directory for the texts."
            )
        return output.features


def _surprises(text: TargetText, logits: Tensor) -> Tensor:
    """By how much logits [n, V] would have to change for each token of `text` to be as it is recorded, [n]."""
    params, tokens = text.question.params, as_ids(text.token_ids)[:, None]
    if is_greedy(params):
        return logits.amax(-1) - logits.gather(-1, tokens)[:, 0]
    p = probabilities(logits, params).gather(-1, tokens)[:, 0]
    return (p.log() - torch.tensor(text.probabilities).log()).abs()


def limit(question: Question, info: TargetInfo) -> int:
    """Most tokens that the answer may have."""
    return min(question.params.max_tokens, info.max_positions - len(question.prompt_ids))


def end_ids(params: SamplingParams, info: TargetInfo) -> frozenset[int]:
    """Tokens that end a text."""
    return frozenset(params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *info.eos_token_ids))


def check_question(question: Question, info: TargetInfo, overhang: int) -> None:
    """Refuse what cannot be written, or not be replayed.

    Raises:
        ConfigError: prompt or parameters cannot be used; penalties or stop strings, which replay does not know.
        CapacityError: prompt, answer and overhang do not fit the target.
    """
    check_sampling(question.params, info.vocab_size)
    check_prompt(question.prompt_ids, info)
    if has_penalties(question.params) or question.params.stop:
        raise ConfigError("replay knows neither penalties nor stop strings; run the loop itself for them")
    length = len(question.prompt_ids) + limit(question, info)
    if length + overhang > info.max_positions:
        raise CapacityError(
            f"prompt and answer take {length} of the {info.max_positions} positions of {info.name}, and replay needs "
            f"{overhang} more; lower max_tokens"
        )


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt that was read: its cache, features [P, m * d], and logits [1, V] of the first token."""

    cache: Cache
    features: Tensor
    logits: Tensor


class _Answer:
    """A text being written."""

    def __init__(self, question: Question, prompt: _Prompt, info: TargetInfo) -> None:
        self.question, self.prompt = question, prompt
        self.token_ids: list[int] = []
        self.features = [prompt.features]
        self._probabilities: list[float] = []
        self._limit, self._end_ids = limit(question, info), end_ids(question.params, info)
        history = TokenHistory(question.prompt_ids)
        vocabulary = DraftVocabulary(info.vocab_size)
        self._sampler = RequestSampler(question.params, vocabulary, history, TokenRejection(), greedy_drafts=False)

    def take(self, logits: Tensor) -> None:
        """Draw the next token from the target's raw `logits` [1, V]."""
        token = self._sampler.round(len(self.token_ids), max_drafts=0).judge(logits).token
        self._probabilities.append(float(probabilities(logits[0], self.question.params)[token]))
        self.token_ids.append(token)

    def is_finished(self, overhang: int) -> bool:
        """Whether a stop token ended the text, or it is as long as is wanted; beyond the limit nothing stops it."""
        length = len(self.token_ids)
        ended = length <= self._limit and self.token_ids[-1] in self._end_ids
        return ended or length == self._limit + overhang

    def written(self) -> Written:
        """The finished text."""
        text = TargetText(self.question, tuple(self.token_ids), tuple(self._probabilities))
        return Written(text, torch.cat(self.features))
