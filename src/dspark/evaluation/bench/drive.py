"""Sends the requests of a workload to an engine, steps it, and loses sight of none."""

import time
from collections.abc import Callable

import numpy as np

from dspark.engine.events import Event
from dspark.engine.stopwatch import Clock
from dspark.errors import EngineError
from dspark.evaluation.bench.serving import ServingCore
from dspark.evaluation.bench.trace import RequestTrace, Run, StepTrace
from dspark.evaluation.bench.workload import Workload

SILENT_STEPS = 10_000
"""So many steps in a row without a token mean that the engine turns on the spot."""

TICK = 1e-6
"""Least seconds to wait: less might vanish in the rounding of the clock."""

ENDS = frozenset({"stop", "length"})
"""How a request may end that nobody aborted; an engine that gives up on one has lost it."""


def drive(
    core: ServingCore,
    workload: Workload,
    seed: int = 0,
    clock: Clock = time.perf_counter,
    wait: Callable[[float], None] = time.sleep,
    watch: Callable[[int], None] = lambda ended: None,
) -> Run:
    """Run `workload` on an idle `core`; `watch` is told how many measured requests have ended.

    Raises:
        EngineError: a request was lost, answered twice or at the wrong length, or the engine stands still.
    """
    drive = Drive(core, workload, seed, clock, wait)
    while drive.left:
        drive.go_on()
        watch(workload.requests - drive.left)
    return drive.end()


class Drive:
    """A run on its way: `go_on` while measured requests are `left`, then `end` it. It has given `tokens` so far.

    `_open` are requests that were sent and have not ended, by the engine's ids.
    """

    def __init__(
        self, core: ServingCore, workload: Workload, seed: int, clock: Clock, wait: Callable[[float], None]
    ) -> None:
        self._core, self._workload, self._clock, self._wait = core, workload, clock, wait
        self._questions = workload.questions(seed)
        self._start = self._last = clock()
        self._sender = workload.load.sender(self._start, np.random.default_rng(seed))
        self._open: dict[int, RequestTrace] = {}
        self._used: set[int] = set()
        self._everyone: list[RequestTrace] = []
        self._steps: list[StepTrace] = []
        self._silent = self.tokens = 0
        self._warming, self.left = workload.warmup, workload.requests

    def go_on(self) -> None:
        """Send what is due, and let the engine make a step, or wait where it has nothing to do."""
        self._send()
        if self._core.idle:
            self._rest()
        else:
            self._step()

    def end(self) -> Run:
        """Let go of what kept the load up; what was seen."""
        end = self._last
        self._abort_rest()
        steps = [step for step in self._steps if self._start < step.ended <= end]
        measured = [trace for trace in self._everyone if self._counts(trace)]
        return Run(measured, self._everyone, steps, self._start, end)

    def _send(self) -> None:
        """What is due; where everything is timed, nothing beyond what is asked for."""
        workload = self._workload
        room = None if workload.steady else workload.requests - len(self._everyone)
        for sent in self._sender.due(self._clock())[:room]:
            question = next(self._questions)
            identity = self._core.add(question.prompt_ids, question.params, salt=question.salt)
            if identity in self._used:
                raise EngineError(f"the engine gave out request id {identity} twice")
            trace = RequestTrace(len(self._everyone), question.params.max_tokens, sent)
            self._open[identity] = trace
            self._everyone.append(trace)
            self._used.add(identity)

    def _counts(self, trace: RequestTrace) -> bool:
        return 0 <= trace.number - self._workload.warmup < self._workload.requests

    def _rest(self) -> None:
        """Nothing runs: until the next arrival, unless somebody waits for an answer."""
        if self._open:
            raise EngineError(f"the engine is idle, but {self._unfinished()} never ended: lost")
        self._wait(max(self._sender.next - self._clock(), TICK))

    def _step(self) -> None:
        before = self._clock()
        events = self._core.step()
        now = self._clock()
        tokens = sum(self._take(event, now) for event in events)
        self.tokens += tokens
        self._silent = 0 if events else self._silent + 1
        if self._silent > SILENT_STEPS:
            raise EngineError(f"nothing came of {SILENT_STEPS} steps in a row; {self._unfinished()} still wait")
        stats = self._core.last
        if stats is not None:
            self._steps.append(StepTrace(now, now - before, tokens, stats))
        self._last = now

    def _take(self, event: Event, now: float) -> int:
        """Tokens of the event, which are entered in their request's trace."""
        trace = self._open.get(event.request_id)
        if trace is None:
            raise EngineError(f"the engine answered request {event.request_id}, which is unknown or had ended")
        tokens = len(event.token_ids)
        if tokens and trace.first is None:
            trace.first = now
        trace.tokens += tokens
        if event.finish_reason is not None:
            self._end(event, trace, now)
        return tokens

    def _end(self, event: Event, trace: RequestTrace, now: float) -> None:
        del self._open[event.request_id]
        trace.ended, trace.reason = now, event.finish_reason
        trace.tally = None if event.result is None else event.result.tally
        self._check(event, trace)
        self._sender.ended()
        if trace.number < self._workload.warmup:
            self._warming -= 1
            if not self._warming:
                self._start = now
        elif self._counts(trace):
            self.left -= 1

    def _check(self, event: Event, trace: RequestTrace) -> None:
        whole = trace.tokens if event.result is None else len(event.result.token_ids)
        told = f"request {event.request_id} ended ({trace.reason}) with {trace.tokens} tokens"
        if trace.reason not in ENDS:
            raise EngineError(f"{told}; nobody asked for that: lost")
        if whole != trace.tokens:
            raise EngineError(f"{told}, but its result holds {whole}")
        short = self._workload.params.ignore_eos and trace.reason == "length" and trace.tokens < trace.limit
        if not trace.tokens or trace.tokens > trace.limit or short:
            raise EngineError(f"{told}; {trace.limit} were asked for")

    def _abort_rest(self) -> None:
        """What kept the load up; the engine must let go of it."""
        for identity in self._open:
            self._core.abort(identity)
        for _ in range(SILENT_STEPS):
            if self._core.idle:
                return
            self._core.step()
        raise EngineError(f"{SILENT_STEPS} steps after {self._unfinished()} were aborted, the engine still runs")

    def _unfinished(self) -> str:
        names = [str(identity) for identity in sorted(self._open)]
        return f"request{'s'[: len(names) > 1]} {', '.join(names[:8])}{' ...'[: 4 * (len(names) > 8)]}"
