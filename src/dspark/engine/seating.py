"""Who takes part in a step: rounds first, then chunks of prompts with the rows that are left, then who waits.

Decoding never stalls while prompts are read. Where pages run out, the youngest request gives its own back and waits at
the head of the queue: it will find most of them cached.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dspark.engine.engine_options import EngineOptions
from dspark.engine.memory import EngineMemory
from dspark.engine.running import Running


@dataclass(frozen=True, slots=True)
class Prefill:
    """The `count` positions from `first` on of a request that is not decoding yet; with the `last`, rounds begin."""

    running: Running
    first: int
    count: int
    last: bool

    @property
    def due(self) -> bool:
        """Whether the first token of the answer is drawn behind them; one that comes back has it already."""
        return self.last and not self.running.request.output.token_ids


@dataclass(slots=True)
class Seats:
    """One step's requests. `preempted` counts those that had to give way."""

    decodes: list[Running] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    preempted: int = 0


class Seating:
    """First come, first served, by the numbers of requests."""

    def __init__(self, memory: EngineMemory, options: EngineOptions) -> None:
        self._memory, self._options = memory, options
        self._waiting: deque[Running] = deque()
        self._seated: list[Running] = []

    @property
    def waiting(self) -> int:
        """Requests without pages."""
        return len(self._waiting)

    @property
    def seated(self) -> Iterable[Running]:
        """Requests with pages, the oldest first."""
        return self._seated

    def queue(self, running: Running) -> None:
        """Let a new request wait its turn."""
        self._waiting.append(running)

    def leave(self, running: Running) -> None:
        """Take a request out, wherever it is."""
        if running.seated:
            self._memory.unseat(running)
            self._seated.remove(running)
        else:
            self._waiting.remove(running)

    def next(self) -> Seats:
        """The next step's requests, with pages for all that they will write."""
        seats = Seats()
        self._fill(seats)
        while not (seats.decodes or seats.prefills) and len(self._seated) > 1:  # half-read prompts block each other
            self._give_way(self._seated[-1], seats)
            self._fill(seats)
        return seats

    def _fill(self, seats: Seats) -> None:
        for running in [one for one in self._seated if one.decoding]:
            if running.seated and self._room_for_round(running, seats):
                seats.decodes.append(running)
        rows = self._options.max_batched_tokens - len(seats.decodes)
        for running in [one for one in self._seated if not one.decoding]:
            rows -= self._read_on(running, rows, seats)
        while rows > 0 and self._waiting and len(self._seated) < self._options.max_requests and not seats.preempted:
            chunk = min(rows, self._options.prefill_chunk)
            if not self._memory.seat(self._waiting[0], chunk):
                break
            running = self._waiting.popleft()
            self._seated.append(running)
            self._seated.sort(key=lambda one: one.key)
            rows -= self._read_on(running, rows, seats)

    def _read_on(self, running: Running, rows: int, seats: Seats) -> int:
        """Give a prompt its next chunk; returns its rows."""
        count = min(rows, self._options.prefill_chunk, running.goal - running.computed)
        if count == 0 or not self._memory.reserve(running, running.computed + count):
            return 0
        first = running.computed
        seats.prefills.append(Prefill(running, first, count, first + count == running.goal))
        return count

    def _room_for_round(self, running: Running, seats: Seats) -> bool:
        """Pages for the anchor and a whole block, if need be those of younger requests, at last its own."""
        while not self._memory.reserve(running, running.request.length + running.strategy.gamma):
            youngest = self._seated[-1]
            self._give_way(youngest, seats)
            if youngest is running:
                return False
        return True

    def _give_way(self, running: Running, seats: Seats) -> None:
        if running in seats.decodes:
            seats.decodes.remove(running)
        self._memory.unseat(running)
        self._seated.remove(running)
        self._waiting.appendleft(running)
        running.preempted += 1
        seats.preempted += 1
