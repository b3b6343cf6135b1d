"""The engine for servers: one thread steps it, coroutines add requests, read their streams and cancel them."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from dspark.engine.core import EngineCore
from dspark.engine.events import Event
from dspark.engine.stops import Detokeniser
from dspark.errors import EngineError
from dspark.types import SamplingParams

IDLE_SECONDS = 0.05
"""How long an engine without work sleeps before it looks whether it shall close."""

Deliver = Callable[[Event | BaseException], None]


class AsyncEngine:
    """Owns `core` and the thread that steps it. An `async with` closes it; requests on their way are then aborted.

    A failure of the engine ends every stream with an `EngineError`, and every later request.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._deliver: dict[int, Deliver] = {}
        self._closing = threading.Event()
        self._ended: EngineError | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="dspark-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Abort what runs, stop the thread and wait for it."""
        self._closing.set()
        self._thread.join()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        strategy: str | None = None,
        seconds: float | None = None,
        salt: str = "",
        detokeniser: Detokeniser | None = None,
    ) -> AsyncIterator[Event]:
        """Events of one request, the last one with its result; leaving the loop early aborts it.

        `seconds` from now its time is up. Errors as in `EngineCore.add`; EngineError if the engine fails or closes.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | BaseException]()

        def deliver(event: Event | BaseException) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        number: asyncio.Future[int] = loop.create_future()

        def add() -> None:
            try:
                deadline = None if seconds is None else self._core.clock() + seconds
                added = self._core.add(
                    prompt_ids, params, strategy=strategy, deadline=deadline, salt=salt, detokeniser=detokeniser
                )
                self._deliver[added] = deliver
                loop.call_soon_threadsafe(_settle, number, added)
            except BaseException as error:
                loop.call_soon_threadsafe(_fail, number, error)

        self._call(add)
        request = await number
        try:
            while True:
                event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
                if event.result is not None:
                    return
        finally:
            with contextlib.suppress(EngineError):
                self._call(lambda: self._cancel(request))

    def _call(self, work: Callable[[], None]) -> None:
        """Let the engine's thread do `work` between two steps. Raises EngineError once that has ended."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._calls.put(work)

    def _cancel(self, request: int) -> None:
        if self._deliver.pop(request, None) is not None:
            self._core.abort(request)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._take_calls()
                if not self._core.idle:
                    self._hand_out(self._core.step())
            self._end(EngineError("the engine was closed before the answer was complete"))
        except BaseException as error:
            self._end(EngineError(f"the engine failed: {error!r}"))

    def _take_calls(self) -> None:
        """Do what is asked for; without anything to step, wait for it."""
        try:
            work = self._calls.get(block=self._core.idle, timeout=IDLE_SECONDS)
            while True:
                work()
                work = self._calls.get_nowait()
        except queue.Empty:
            return

    def _hand_out(self, events: Sequence[Event]) -> None:
        for event in events:
            deliver = self._deliver.get(event.request_id)
            if event.result is not None:
                self._deliver.pop(event.request_id, None)
            if deliver is not None:
                deliver(event)

    def _end(self, error: EngineError) -> None:
        """Tell everybody; what was asked for meanwhile is done, so that nobody waits for an answer."""
        with self._lock:
            self._ended = error
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()()
        for request, deliver in list(self._deliver.items()):
            with contextlib.suppress(Exception):
                self._core.abort(request)
            deliver(error)
        self._deliver.clear()


def _settle(number: "asyncio.Future[int]", request: int) -> None:
    if not number.done():
        number.set_result(request)


def _fail(number: "asyncio.Future[int]", error: BaseException) -> None:
    if not number.done():
        number.set_exception(error)
