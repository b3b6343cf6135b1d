"""The engine for servers: one thread steps it, coroutines add requests, read their streams and cancel them."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from dspark.engine.core import EngineCore, check_time
from dspark.engine.event_stream import EventStream
from dspark.engine.events import Event
from dspark.engine.prompts import Codec, Prompt
from dspark.engine.stops import Detokeniser
from dspark.errors import ConfigError, EngineError
from dspark.types import SamplingParams

IDLE_SECONDS = 0.05
"""How long an engine without work sleeps before it looks whether it shall close."""


class AsyncEngine:
    """Owns `core` and the thread that steps it. An `async with` closes it; requests on their way are then aborted.

    With a `codec` it takes texts for prompts and streams text (`LLM.serve` gives it the target's); without one, tokens
    only, unless a request brings its own detokeniser.

    A failure of the engine ends every stream with an `EngineError`, and every later request.
    """

    def __init__(self, core: EngineCore, codec: Codec | None = None) -> None:
        self._core, self._codec = core, codec
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[int, EventStream] = {}
        self._closing = threading.Event()
        self._ended: str | None = None
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
        prompt: Prompt,
        params: SamplingParams,
        *,
        strategy: str | None = None,
        seconds: float | None = None,
        salt: str = "",
        detokeniser: Detokeniser | None = None,
    ) -> AsyncIterator[Event]:
        """Events of one request, the last one with its result; leaving the loop early aborts it.

        `seconds` from now its time is up. `detokeniser` makes the text instead of the codec's.
        Errors as in `EngineCore.add`; EngineError if the engine fails or closes.
        """
        check_time("seconds", seconds)
        prompt_ids = self._ids(prompt)
        if detokeniser is None and self._codec is not None:
            detokeniser = self._codec.detokeniser()
        stream = EventStream()

        def add() -> None:
            try:
                deadline = None if seconds is None else self._core.clock() + seconds
                stream.request = self._core.add(
                    prompt_ids, params, strategy=strategy, deadline=deadline, salt=salt, detokeniser=detokeniser
                )
                self._streams[stream.request] = stream
            except BaseException as error:
                stream.tell(error)

        self._call(add)
        try:
            while True:
                event = await stream.next()
                yield event
                if event.result is not None:
                    return
        finally:
            with contextlib.suppress(EngineError):  # calls are done in order: by then the request has its number
                self._call(lambda: self._cancel(stream.request))

    def _ids(self, prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if self._codec is None:
            raise ConfigError(f"the prompt is the text {prompt!r:.60}, but the engine has no codec; expected token ids")
        return self._codec.encode(prompt)

    def _call(self, work: Callable[[], None]) -> None:
        """Let the engine's thread do `work` between two steps. Raises EngineError once that has ended."""
        with self._lock:
            if self._ended is not None:
                raise EngineError(self._ended)
            self._calls.put(work)

    def _cancel(self, request: int | None) -> None:
        if request is not None and self._streams.pop(request, None) is not None:
            self._core.abort(request)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._take_calls()
                if not self._core.idle:
                    self._hand_out(self._core.step())
            self._end("the engine was closed before the answer was complete")
        except BaseException as error:
            self._end(f"the engine failed: {error!r}")

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
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue
            if event.result is not None:
                del self._streams[event.request_id]
                stream.tell(event)
            elif not stream.tell(event):
                self._cancel(event.request_id)

    def _end(self, reason: str) -> None:
        """Tell everybody; what was asked for meanwhile is done, so that nobody waits for an answer."""
        with self._lock:
            self._ended = reason
        with contextlib.suppress(queue.Empty):
            while True:
                work = self._calls.get_nowait()
                with contextlib.suppress(Exception):
                    work()
        for request, stream in list(self._streams.items()):
            with contextlib.suppress(Exception):
                self._core.abort(request)
            stream.tell(EngineError(reason))
        self._streams.clear()
