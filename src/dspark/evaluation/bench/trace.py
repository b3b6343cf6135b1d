"""What was seen of a run: every measured request, and every step of the window."""

from collections.abc import Sequence
from dataclasses import dataclass

from dspark.core.tau import RoundTally
from dspark.engine.events import StepStats


@dataclass(slots=True)
class RequestTrace:
    """One request: when it was sent, gave its first token and ended (seconds of the clock), and what it wrote.

    An open loop's request is `sent` when it arrives, even if the engine is told later.
    """

    number: int
    limit: int
    sent: float
    first: float | None = None
    ended: float | None = None
    tokens: int = 0
    reason: str | None = None
    tally: RoundTally | None = None

    @property
    def latency(self) -> float:
        """Seconds from sending to the last token."""
        assert self.ended is not None
        return self.ended - self.sent

    @property
    def first_token_seconds(self) -> float:
        """Seconds from sending to the first token."""
        assert self.first is not None
        return self.first - self.sent

    @property
    def speed(self) -> float:
        """Tokens per second that this user saw, the wait for the first one included."""
        return self.tokens / self.latency

    @property
    def writing_speed(self) -> float | None:
        """Tokens per second after the first; None if all came at once."""
        assert self.first is not None
        assert self.ended is not None
        return (self.tokens - 1) / (self.ended - self.first) if self.ended > self.first else None


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step: `seconds` by the driver's clock until `ended`, tokens that came of it, and what the engine says."""

    ended: float
    seconds: float
    tokens: int
    stats: StepStats


@dataclass(frozen=True, slots=True)
class Run:
    """A workload that was driven: the window from `start` to `end`, and the `steps` that ended in it.

    `measured` requests have all ended; `everyone` holds the warm-up and those that kept the load up, too.
    """

    measured: Sequence[RequestTrace]
    everyone: Sequence[RequestTrace]
    steps: Sequence[StepTrace]
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start

    @property
    def ended(self) -> int:
        """Requests of any kind that ended in the window."""
        return sum(r.ended is not None and self.start < r.ended <= self.end for r in self.everyone)

    @property
    def in_flight(self) -> float:
        """Mean number of requests, over the time of the window, that were sent and had not ended."""
        ends = [(r.sent, self.end if r.ended is None else min(r.ended, self.end)) for r in self.everyone]
        inside = sum(max(ended - max(sent, self.start), 0.0) for sent, ended in ends)
        return inside / self.seconds if self.seconds else 0.0
