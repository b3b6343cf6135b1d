"""What decoding gives: pieces as they are committed, and the whole at the end."""

from dataclasses import dataclass
from typing import Any, Literal

from dspark.core.tau import RoundTally
from dspark.types import TokenLogprob

TextEnd = Literal["stop", "length"]
"""A stop token or string; the token limit or the end of the context."""

FinishReason = Literal["stop", "length", "abort", "deadline", "error"]
"""A `TextEnd`, or from outside: whoever asked no longer wants it, its time is up; or no token could be drawn for it."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that one round added to the output, the text that can be shown now, and log-probabilities if asked for."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds spent inside the loop, waiting for the reader of a stream excluded.

    `draft` includes encoding context features for the drafter, `verify` target forward, head and judgement,
    `schedule` the admission policy. Prefill is apart, for the drafter's context as well as the target's.
    """

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    schedule: float = 0.0

    @property
    def decode(self) -> float:
        """All rounds, without prefill."""
        return self.draft + self.verify + self.schedule


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """One finished request. `text` is empty without a detokeniser; `lookup_rounds` copied their drafts.

    `logprobs` has one entry a token if `SamplingParams.logprobs` asks for them, else none. `error` says what went wrong
    where `finish_reason` is "error".
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    tally: RoundTally
    times: Times
    lookup_rounds: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first per second of the rounds that made them; 0 without rounds."""
        tokens = len(self.token_ids) - self.tally.first_tokens
        return tokens / self.times.decode if self.times.decode > 0 else 0.0

    @property
    def metrics(self) -> dict[str, Any]:
        """The keys that every run reports."""
        return {
            **self.tally.metrics(),
            "lookup_rounds": self.lookup_rounds,
            "tokens_per_second": self.tokens_per_second,
            "prefill_seconds": self.times.prefill,
            "draft_seconds": self.times.draft,
            "verify_seconds": self.times.verify,
            "schedule_seconds": self.times.schedule,
        }
