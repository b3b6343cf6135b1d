"""Decoding an evaluation prompt, turn by turn, with the loop that serves users or one that stands in for it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from dspark.core.tau import RoundTally
from dspark.data.chat import Message
from dspark.data.text import TextCodec
from dspark.engine.options import DecodeOptions
from dspark.engine.result import GenerationResult
from dspark.engine.stops import Detokeniser
from dspark.evaluation.evaluate import PromptOutcome
from dspark.evaluation.prompts import Prompt
from dspark.types import Drafter, SamplingParams, Target


class Loop(Protocol):
    """Answers prompts: the reference loop, or its replay."""

    @property
    def target(self) -> Target: ...
    @property
    def drafter(self) -> Drafter | None: ...
    @property
    def options(self) -> DecodeOptions: ...

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, detokeniser: Detokeniser | None = None
    ) -> GenerationResult: ...


def turn_seed(seed: int, turn: int) -> int:
    """Seed of a later turn: its random numbers must be fresh, because what they once decided is now its context."""
    if turn == 0:
        return seed
    return int(np.random.SeedSequence((seed, turn)).generate_state(1, np.uint64)[0])


@dataclass(frozen=True, slots=True)
class PromptDecoder:
    """Answers each turn of a prompt, earlier answers staying in the conversation (MT-Bench has two turns)."""

    loop: Loop
    codec: TextCodec
    params: SamplingParams

    def __call__(self, prompt: Prompt, seed: int) -> PromptOutcome:
        """The rounds and seconds of all turns."""
        messages: list[Message] = []
        results = []
        for turn, text in enumerate(prompt.turns):
            messages.append(Message("user", text))
            ids = self.codec.encode_chat(messages)
            params = replace(self.params, seed=turn_seed(seed, turn))
            result = self.loop.generate(ids, params, self.codec.detokeniser())
            messages.append(Message("assistant", result.text))
            results.append(result)
        return PromptOutcome(
            RoundTally.merged(result.tally for result in results),
            sum(result.times.decode for result in results),
            sum(result.times.prefill for result in results),
        )

    def settings(self) -> dict[str, Any]:
        """What decides the outcomes: written at the head of a journal."""
        loop = self.loop
        return {
            "target": loop.target.info.name,
            "target_hash": loop.target.info.weights_hash,
            "template_hash": loop.target.info.template_hash,
            "drafter": None if loop.drafter is None else loop.drafter.info.name,
            "gamma": 0 if loop.drafter is None else loop.drafter.info.gamma,
            "rule": type(loop.options.rule).__name__,
            "max_draft_tokens": loop.options.max_draft_tokens,
            **({} if loop.options.lookup is None else {"lookup": asdict(loop.options.lookup)}),
            **asdict(self.params),
        }
