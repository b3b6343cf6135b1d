"""Decoding prompts in full width and keeping what became of every draft, prompt by prompt, resumable."""

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from dspark.calibration.records import RoundRecords, concatenate
from dspark.calibration.shards import RecordStore
from dspark.core.admission import admit_all
from dspark.core.rejection import TokenRejection
from dspark.data.chat import Message
from dspark.data.text import TextCodec
from dspark.engine.reference import ReferenceLoop
from dspark.engine.round_recorder import RequestLabel, RoundRecorder, draft_mode, every_round
from dspark.engine.stopwatch import Clock
from dspark.errors import ConfigError
from dspark.evaluation.decode import turn_seed
from dspark.evaluation.prompts import Prompt, PromptSet
from dspark.types import SamplingParams

FLUSH_SECONDS = 30.0
"""An interruption without warning costs at most the prompts of so long."""


@dataclass(frozen=True, slots=True)
class RecordingDecoder:
    """Answers each turn of a prompt and records its rounds; the loop's drafter must be free to draft gamma tokens."""

    loop: ReferenceLoop
    codec: TextCodec
    params: SamplingParams

    def __post_init__(self) -> None:
        if self.loop.drafter is None:
            raise ConfigError(f"{self.loop.target.info.name} decodes without a drafter; name one to calibrate")
        cap = self.loop.options.max_draft_tokens
        if cap is not None and cap < self.gamma:
            raise ConfigError(f"max_draft_tokens is {cap}; records need all {self.gamma} drafts verified")
        if self.loop.options.admits is not admit_all:
            raise ConfigError("options.admits would not be asked, as every round is recorded in full; use admit_all")
        if self.loop.options.lookup is not None:
            raise ConfigError("options.lookup copies drafts, which say nothing of the drafter; record without lookup")

    @property
    def gamma(self) -> int:
        """Drafts of a full-width round."""
        return 0 if self.loop.drafter is None else self.loop.drafter.info.gamma

    def __call__(self, prompt: Prompt, set_name: str, seed: int) -> RoundRecords:
        """The full-width rounds of all turns, earlier answers staying in the conversation."""
        mode = draft_mode(self.loop.options, self.params)
        label = RequestLabel(*prompt_key(prompt, set_name), mode, self.params.temperature)
        messages: list[Message] = []
        parts = []
        for turn, text in enumerate(prompt.turns):
            messages.append(Message("user", text))
            recorder = RoundRecorder(label, self.gamma, every_round)
            params = replace(self.params, seed=turn_seed(seed, turn))
            ids = self.codec.encode_chat(messages)
            result = self.loop.generate(ids, params, self.codec.detokeniser(), recorder)
            messages.append(Message("assistant", result.text))
            parts.append(recorder.records())
        records = concatenate(parts)
        if isinstance(self.loop.options.rule, TokenRejection):
            return records
        return replace(records, overlap=np.full_like(records.overlap, np.nan))  # another rule, other chances


def prompt_key(prompt: Prompt, set_name: str) -> tuple[int, str]:
    """(request, domain) by which a prompt's records are told apart: its digest; its domain, or else its set's name."""
    return int(prompt.digest, 16), prompt.domain or set_name


def record_rounds(
    decode: Callable[[Prompt, str, int], RoundRecords],
    sets: Sequence[PromptSet],
    store: RecordStore | None = None,
    seed: int = 0,
    watch: Callable[[str, int], Any] = lambda name, rounds: None,
    clock: Clock = time.monotonic,
) -> RoundRecords:
    """Records of every prompt (prompt i of a set is sampled with seed + i); those that `store` holds are not decoded.

    A prompt that is there twice is decoded where it comes first, once in each domain that it belongs to, so that a
    resumed run ends with the rounds of one that was never interrupted. One whose answer has no round leaves nothing
    behind and is asked again, which costs a forward of its prompt. `watch` is told the set's name and the rounds of
    each prompt, 0 for one that is not decoded. An interruption keeps what is finished.
    """
    wanted = {prompt_key(prompt, one.name) for one in sets for prompt in one.prompts}
    done = set[tuple[int, str]]() if store is None else set(store.requests())
    kept = [] if store is None or not done else [_only(store.read(), wanted)]
    with _Buffer(store, clock) as buffer:
        for one in sets:
            for index, prompt in enumerate(one.prompts):
                rounds, key = 0, prompt_key(prompt, one.name)
                if key not in done:
                    done.add(key)
                    records = decode(prompt, one.name, seed + index)
                    buffer.add(records)
                    kept.append(records)
                    rounds = len(records)
                watch(one.name, rounds)
    return concatenate(kept)


class _Buffer:
    """Finished prompts on their way to the store, written every half minute and at the end, however it comes."""

    def __init__(self, store: RecordStore | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._parts: list[RoundRecords] = []
        self._written = clock()

    def add(self, records: RoundRecords) -> None:
        self._parts.append(records)
        if self._clock() - self._written >= FLUSH_SECONDS:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._store is not None and self._parts:
            self._store.append(concatenate(self._parts))
        self._parts, self._written = [], self._clock()


def _only(records: RoundRecords, wanted: Set[tuple[int, str]]) -> RoundRecords:
    return records.take(np.array([key in wanted for key in records.origins()], dtype=bool))
