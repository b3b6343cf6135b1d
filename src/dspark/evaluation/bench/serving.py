"""The seam to whatever is measured: an engine that requests enter and leave at any step."""

from collections.abc import Sequence
from typing import Protocol

from dspark.core.tau import RoundTally
from dspark.types import SamplingParams


class StepStats(Protocol):
    """One step: counts, and seconds by activity, which sum to `seconds`.

    `requests` were decoding; `drafted`, `verified` and `accepted` are drafts, `emitted` tokens given out. `budget` is
    the number of drafts planned (None: left open), `predicted_survival` the sum of calibrated survivals of the verified
    drafts (None: no confidences), `predicted_seconds` the step's time by the cost table.
    """

    @property
    def requests(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...
    @property
    def drafted(self) -> int: ...
    @property
    def budget(self) -> int | None: ...
    @property
    def verified(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def emitted(self) -> int: ...
    @property
    def predicted_survival(self) -> float | None: ...
    @property
    def predicted_seconds(self) -> float | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def draft_seconds(self) -> float: ...
    @property
    def verify_seconds(self) -> float: ...
    @property
    def schedule_seconds(self) -> float: ...
    @property
    def other_seconds(self) -> float: ...
    @property
    def pages_used(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def preempted(self) -> int: ...


class Answer(Protocol):
    """What a finished request gives, as far as it is measured."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def tally(self) -> RoundTally: ...


class Event(Protocol):
    """What a step did for one request; `finish_reason` and `result` come with the last event of a request."""

    @property
    def request_id(self) -> int: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def result(self) -> Answer | None: ...


class ServingCore(Protocol):
    """An engine driven step by step from one thread; request ids are never reused."""

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        ...

    @property
    def last(self) -> StepStats | None:
        """Figures of the last step."""
        ...

    def add(self, prompt_ids: Sequence[int], params: SamplingParams, *, salt: str = "") -> int:
        """Take in a request; `salt` keeps its prefix apart from equal ones under other salts."""
        ...

    def abort(self, request_id: int) -> None: ...

    def step(self) -> Sequence[Event]: ...
