"""What a step of the engine tells: of each request, and of itself."""

from dataclasses import dataclass

from dspark.engine.result import FinishReason, GenerationResult
from dspark.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class Event:
    """What a step gave one request: new tokens, the text that can be shown now, and at its end reason and result.

    `logprobs` are those of the new tokens, if the request asks for them. `error` is told with the reason "error".
    """

    request_id: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    result: GenerationResult | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepStats:
    """One step in numbers. Seconds add up: `draft` + `verify` + `schedule` + `other` = `seconds`.

    Of `requests` that decoded, the drafters of `drafting` ran; `drafted` drafts were made, copies included, of which
    `verified` went through the target and `accepted` survived; `emitted` tokens went out, first ones included. The
    drafters of `asleep` ones were put away. `budget` is the number of drafts that the scheduler had decided on
    beforehand, None if it left that open.
    `predicted_survival` is the sum of the verified drafts' calibrated survivals, copies left out (None if nobody asked
    for confidences), to compare with what is accepted of these; `predicted_seconds` what the cost model expected of a
    round of this size. Of prompts, `prefill_tokens` were computed and `hit_tokens` found in cached pages, by those who
    entered.
    """

    requests: int = 0
    drafting: int = 0
    prefill_tokens: int = 0
    hit_tokens: int = 0
    drafted: int = 0
    budget: int | None = None
    verified: int = 0
    accepted: int = 0
    emitted: int = 0
    asleep: int = 0
    uniform: bool = False
    probe: bool = False
    predicted_survival: float | None = None
    predicted_seconds: float | None = None
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    schedule_seconds: float = 0.0
    other_seconds: float = 0.0
    pages_used: int = 0
    waiting: int = 0
    preempted: int = 0
    finished: int = 0
