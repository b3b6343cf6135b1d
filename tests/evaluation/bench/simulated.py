"""A serving engine of a few lines on a clock that it moves itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dspark.core.tau import Round, RoundTally
from dspark.engine.events import Event, StepStats
from dspark.engine.result import GenerationResult, Times
from dspark.types import SamplingParams


class Clock:
    """Seconds that pass when something takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@dataclass
class Running:
    prompt: int
    limit: int
    salt: str
    seed: int
    written: list[int] = field(default_factory=list)
    tally: RoundTally = field(default_factory=lambda: RoundTally(first_tokens=1))


class SimulatedCore:
    """Up to `slots` requests; a step takes `step` seconds, `per_token` more for each one read or verified.

    The first step of a request reads its prompt and gives a token, each later one verifies `drafts` and accepts
    `accepted`. `spoil` may change the events of a step: the ways to break a promise.
    """

    def __init__(
        self,
        clock: Clock,
        step: float = 1.0,
        per_token: float = 0.0,
        drafts: int = 0,
        accepted: int = 0,
        slots: int = 64,
        spoil: Callable[[list[Event]], list[Event]] = lambda events: events,
    ) -> None:
        self.clock, self.seconds, self.per_token = clock, step, per_token
        self.drafts, self.accepted, self.slots, self.spoil = drafts, accepted, slots, spoil
        self.last: StepStats | None = None
        self.waiting: dict[int, Running] = {}
        self.running: dict[int, Running] = {}
        self.asked: list[Running] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, prompt_ids: Sequence[int], params: SamplingParams, *, salt: str = "") -> int:
        new = Running(len(prompt_ids), params.max_tokens, salt, params.seed)
        self.asked.append(new)
        self.waiting[len(self.asked)] = new
        return len(self.asked)

    def abort(self, request: int) -> None:
        self.waiting.pop(request, None)
        self.running.pop(request, None)

    def step(self) -> list[Event]:
        while self.waiting and len(self.running) < self.slots:
            identity = next(iter(self.waiting))
            self.running[identity] = self.waiting.pop(identity)
        prompts = sum(one.prompt for one in self.running.values() if not one.written)
        old = sum(bool(one.written) for one in self.running.values())
        seconds = self.seconds + self.per_token * (prompts + old * (1 + self.drafts))
        self.clock.wait(seconds)
        events = [self._event(identity, one) for identity, one in list(self.running.items())]
        self.last = StepStats(
            requests=old,
            drafting=old if self.drafts else 0,
            prefill_tokens=prompts,
            drafted=old * self.drafts,
            budget=old * self.drafts,
            verified=old * self.drafts,
            accepted=old * self.accepted,
            emitted=sum(len(event.token_ids) for event in events),
            predicted_survival=0.5 * old * self.drafts,
            predicted_seconds=2 * seconds,
            seconds=seconds,
            draft_seconds=0.25 * seconds,
            verify_seconds=0.5 * seconds,
            schedule_seconds=0.125 * seconds,
            other_seconds=0.125 * seconds,
            pages_used=len(self.running),
            waiting=len(self.waiting),
            preempted=0,
        )
        return self.spoil(events)

    def _event(self, identity: int, one: Running) -> Event:
        count = min(1 + (self.accepted if one.written else 0), one.limit - len(one.written))
        if one.written:
            one.tally.add(Round(self.drafts, self.drafts, self.accepted, count))
        one.written += [7] * count
        if len(one.written) < one.limit:
            return Event(identity, (7,) * count, "")
        del self.running[identity]
        result = GenerationResult(tuple(one.written), "", "length", one.tally, Times())
        return Event(identity, (7,) * count, "", "length", result)
