"""The built-in engine as a source of answers: many plain decodings side by side, each slot refilled when it is free.

Where the matrices are read once for all requests, that is faster than drafting for each. Shapes: B requests running,
V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import Tensor

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.params import check_sampling
from dspark.core.penalties import TokenHistory
from dspark.core.rejection import TokenRejection
from dspark.data.answer_source import Backlog, Failure, Outcome, Question, Reply, SamplingSettings
from dspark.data.transcript import Transcriber
from dspark.engine.request import check_prompt
from dspark.engine.sampler import RequestSampler
from dspark.engine.stops import Output
from dspark.errors import CapacityError
from dspark.targets.native import NativeTarget
from dspark.types import Cache, SamplingParams, Target, as_ids


def sampling_params(settings: SamplingSettings, seed: int) -> SamplingParams:
    """The engine's parameters for one answer."""
    return SamplingParams(**asdict(settings), seed=seed)


class SideBySide:
    """An `AnswerSource` that decodes up to `slots` questions at once, as the loop without a drafter would.

    Raises ConfigError for settings that cannot be used.
    """

    def __init__(self, target: Target, transcriber: Transcriber, settings: SamplingSettings, slots: int = 32) -> None:
        self._target, self._transcriber, self._settings, self._slots = target, transcriber, settings, slots
        check_sampling(sampling_params(settings, seed=0))

    def answers(self, backlog: Backlog) -> Iterator[Outcome]:
        """Outcomes as answers end; a prompt that does not fit the target is a failure."""
        running: list[_Slot] = []
        while True:
            while len(running) < self._slots and (question := backlog.take()) is not None:
                begun = self._begin(question)
                if isinstance(begun, Failure):
                    yield Outcome(question, begun)
                else:
                    running.append(begun)
            if not running:
                return
            for slot in running:
                if slot.output.finish_reason is not None:
                    yield slot.outcome()
            running = [slot for slot in running if slot.output.finish_reason is None]
            if running:
                self._step(running)

    @torch.inference_mode()
    def _begin(self, question: Question) -> "_Slot | Failure":
        prompt_ids, info = question.prompt.token_ids, self._target.info
        try:
            check_prompt(prompt_ids, info)
        except CapacityError as error:
            return Failure(str(error))
        slot = _Slot(question, self._settings, self._target, self._transcriber)
        last = self._target.forward(as_ids(prompt_ids), slot.cache).last_hidden[-1:]
        slot.take(self._target.logits(last))
        return slot

    @torch.inference_mode()
    def _step(self, running: "list[_Slot]") -> None:
        """One more token of each."""
        logits = self._target.logits(self._last_hidden(running))
        for row, slot in enumerate(running):
            slot.take(logits[row : row + 1])

    def _last_hidden(self, running: "list[_Slot]") -> Tensor:
        """[B, d]."""
        last, target = as_ids([slot.output.token_ids[-1] for slot in running]), self._target
        if isinstance(target, NativeTarget):
            return target.forward_ragged(last, [slot.cache for slot in running], [1] * len(running)).last_hidden
        steps = (target.forward(last[i : i + 1], slot.cache) for i, slot in enumerate(running))
        return torch.cat([step.last_hidden for step in steps])


class _Slot:
    """An answer being written."""

    def __init__(
        self, question: Question, settings: SamplingSettings, target: Target, transcriber: Transcriber
    ) -> None:
        info, prompt_ids = target.info, question.prompt.token_ids
        limit = min(settings.max_tokens, info.max_positions - len(prompt_ids))
        self.cache: Cache = target.new_cache(len(prompt_ids) + limit)
        self.output = Output(limit, info.eos_token_ids, (), None)
        self._question, self._transcriber = question, transcriber
        params = sampling_params(settings, question.seed)
        history, vocabulary = TokenHistory(prompt_ids), DraftVocabulary(info.vocab_size)
        self._sampler = RequestSampler(params, vocabulary, history, TokenRejection(), greedy_drafts=False)

    def take(self, logits: Tensor) -> None:
        """Draw the next token from raw `logits` [1, V]."""
        token = self._sampler.round(len(self.output.token_ids), max_drafts=0).judge(logits).token
        self.output.take([token])

    def outcome(self) -> Outcome:
        """The finished answer."""
        reason, token_ids = self.output.finish_reason, tuple(self.output.token_ids)
        assert reason is not None
        return Outcome(self._question, Reply(self._transcriber.decode(token_ids), token_ids, reason))
