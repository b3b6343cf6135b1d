"""The seam to whatever is measured: an engine that requests enter and leave at any step."""

from collections.abc import Sequence
from typing import Protocol

from dspark.engine.events import Event, StepStats
from dspark.types import SamplingParams


class ServingCore(Protocol):
    """An engine driven step by step from one thread (`engine.core.EngineCore`); request numbers are never reused."""

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs, and no event is left to tell."""
        ...

    @property
    def last(self) -> StepStats | None:
        """Figures of the last step."""
        ...

    def add(self, prompt_ids: Sequence[int], params: SamplingParams, *, salt: str = "") -> int:
        """Take in a request; `salt` keeps its prefix apart from equal ones under other salts."""
        ...

    def abort(self, request: int, /) -> None:
        """End a request that nobody wants any longer."""
        ...

    def step(self) -> Sequence[Event]:
        """What one step gave."""
        ...
