"""Who takes part in a step, and with how many rows. No tensors, no clock: requests, limits and pages decide."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from dspark.engine.waiting import Numbered, WaitingQueue


class Plannable(Numbered, Protocol):
    """What planning must know of a request: `computed` positions of the `goal` from which it decodes.

    `drafts` is the most its next round may propose. `computed` is asked of requests with a seat only.
    """

    @property
    def computed(self) -> int: ...
    @property
    def goal(self) -> int: ...
    @property
    def drafts(self) -> int: ...


R = TypeVar("R", bound=Plannable)
M = TypeVar("M", bound=Plannable, contravariant=True)


class StepMemory(Protocol[M]):
    """Gives pages to requests and takes them back."""

    def seat(self, request: M, spare: int) -> bool:
        """Pages for all positions of `goal` and a round behind it, cached ones included, so that `computed` < `goal`.

        False, with nothing held, if fewer than `spare` pages would be left.
        """
        ...

    def reserve(self, request: M, positions: int) -> bool:
        """Pages for positions below `positions`; False, with nothing taken, if there are too few."""
        ...

    def unseat(self, request: M) -> None:
        """Take all its pages back."""
        ...


class Limits(Protocol):
    """`EngineOptions` is one. `max_batched_tokens` is at least `max_requests`: every round needs a row."""

    @property
    def max_requests(self) -> int: ...
    @property
    def max_batched_tokens(self) -> int: ...
    @property
    def prefill_chunk(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Chunk(Generic[R]):
    """The `count` positions from `first` on of a request that does not decode yet."""

    request: R
    first: int
    count: int

    @property
    def last(self) -> bool:
        """Whether the request decodes after it."""
        return self.first + self.count == self.request.goal


@dataclass(slots=True)
class Step(Generic[R]):
    """One step. All requests have pages for what they write, `drafts` rows are left for the drafts of all rounds.

    `open` rows would be left if resting rounds gave prompts none of theirs: what a scheduler has to think of.
    `entered` got a seat (and are among `prefills`), `preempted` lost theirs and wait again.
    """

    decodes: list[R] = field(default_factory=list)
    prefills: list[Chunk[R]] = field(default_factory=list)
    entered: list[R] = field(default_factory=list)
    preempted: list[R] = field(default_factory=list)
    drafts: int = 0
    open: int = 0

    @property
    def hits(self) -> int:
        """Positions that those who entered found computed."""
        entered = {request.key for request in self.entered}
        return sum(chunk.first for chunk in self.prefills if chunk.request.key in entered)


def plan_step(
    seated: Iterable[R],
    waiting: WaitingQueue[R],
    limits: Limits,
    memory: StepMemory[R],
    resting: bool = False,
) -> Step[R]:
    """The next step of the `seated` requests and of those that enter; `waiting` and `memory` change with it.

    Every decoding request takes part with its anchor, so that decoding never stalls while prompts are read. Prompts,
    the oldest first, get what rows the drafts do not want, and `prefill_chunk` rows even if drafts must give way.
    Drafts want all that rounds may propose, or one row a request, for a probe, where rounds are `resting`.

    A request enters when there are pages for its whole prompt and one more for everybody seated, in order of arrival,
    nobody overtakes. A round that lacks pages takes those of the youngest seated request, never of an older one, and
    sits out if it is the youngest itself: the oldest request moves on in every step, hence all finish.
    """
    step: Step[R] = Step()
    order = sorted(seated, key=lambda request: request.key)
    _plan_rounds(step, order, waiting, memory)
    rows = limits.max_batched_tokens - len(step.decodes)
    wanted, chunk = sum(request.drafts for request in step.decodes), min(rows, limits.prefill_chunk)
    reading = max(rows - (min(wanted, len(step.decodes)) if resting else wanted), chunk)
    for request in order:
        reading -= _read_on(step, request, min(reading, limits.prefill_chunk))
    taken = len(order)
    while waiting and reading > 0 and taken < limits.max_requests and not step.preempted:
        if not memory.seat(waiting.head, taken):
            break
        taken += 1
        step.entered.append(waiting.pop())
        reading -= _read_on(step, step.entered[-1], min(reading, limits.prefill_chunk))
    step.drafts = rows - sum(prefill.count for prefill in step.prefills)
    step.open = max(step.drafts, min(wanted, rows - chunk))
    return step


def _plan_rounds(step: Step[R], order: list[R], waiting: WaitingQueue[R], memory: StepMemory[R]) -> None:
    """Let all of `order` decode that can, the oldest first; the preempted leave `order` from its end."""
    at = 0
    while at < len(order):
        request = order[at]
        if request.computed >= request.goal and _find_pages(step, request, order, waiting, memory):
            step.decodes.append(request)
        at += 1


def _find_pages(step: Step[R], request: R, order: list[R], waiting: WaitingQueue[R], memory: StepMemory[R]) -> bool:
    """Pages for the anchor and all drafts of a round, if need be those of younger requests."""
    while not memory.reserve(request, request.computed + 1 + request.drafts):
        if len(order) == 1:
            raise AssertionError("the only request with a seat finds too few pages: somebody without one holds some")
        if order[-1] is request:
            return False
        youngest = order.pop()
        memory.unseat(youngest)
        waiting.put(youngest)
        step.preempted.append(youngest)
    return True


def _read_on(step: Step[R], request: R, most: int) -> int:
    """Give a prompt its next chunk of `most` positions or fewer; returns its rows."""
    count = min(most, request.goal - request.computed)
    if count <= 0:
        return 0
    step.prefills.append(Chunk(request, request.computed, count))
    return count
