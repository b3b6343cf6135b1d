"""The engine behind coroutines: streams, cancellation, deadlines, failure, closing."""

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Any

import pytest

from dspark.core.hashed_law import HashedLaw
from dspark.engine.async_engine import AsyncEngine
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.events import Event
from dspark.engine.reference import ReferenceLoop
from dspark.errors import ConfigError, EngineError
from dspark.scheduling.registry import SchedulerConfig
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams, TargetOutput

V = 6
ENDLESS = SamplingParams(max_tokens=5_000, ignore_eos=True)


def target() -> FakeTarget:
    return FakeTarget(HashedLaw(V, 1, 2), V, 2, max_positions=6_000)


def core() -> EngineCore:
    return EngineCore(target(), options=EngineOptions(4, pages=800, scheduler=SchedulerConfig("fixed", park=False)))


async def collect(engine: AsyncEngine, prompt: Sequence[int], params: SamplingParams) -> list[Event]:
    return [event async for event in engine.generate(prompt, params)]


def test_streams_of_many_coroutines_hold_what_each_gets_alone() -> None:
    async def serve() -> list[list[Event]]:
        async with AsyncEngine(core()) as engine:
            jobs = [collect(engine, [i % V, 1], SamplingParams(1.0, seed=i, max_tokens=9)) for i in range(12)]
            return await asyncio.gather(*jobs)

    for i, events in enumerate(asyncio.run(serve())):
        alone = ReferenceLoop(target()).generate([i % V, 1], SamplingParams(1.0, seed=i, max_tokens=9))
        assert tuple(token for event in events for token in event.token_ids) == alone.token_ids
        assert events[-1].result is not None
        assert events[-1].finish_reason == "length"


def test_a_reader_that_leaves_ends_its_request_and_no_other() -> None:
    async def serve() -> tuple[int, list[Event]]:
        inner = core()
        async with AsyncEngine(inner) as engine:
            other = asyncio.create_task(collect(engine, [1], SamplingParams(max_tokens=40)))
            stream = engine.generate([0], ENDLESS)
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
            events = await other
            while not inner.idle:
                await asyncio.sleep(0.001)
            return inner.memory.manager.used, events

    used, events = asyncio.run(asyncio.wait_for(serve(), 20))
    assert used == 0
    assert events[-1].finish_reason == "length"


def test_time_that_is_up_ends_a_request_with_what_it_has() -> None:
    async def serve() -> list[Event]:
        async with AsyncEngine(core()) as engine:
            return [event async for event in engine.generate([0], ENDLESS, seconds=0.05)]

    last = asyncio.run(asyncio.wait_for(serve(), 20))[-1]
    assert last.finish_reason == "deadline"
    assert last.result is not None
    assert 0 < len(last.result.token_ids) < 5_000


def test_bad_input_is_the_callers_error_and_hurts_nobody() -> None:
    async def serve() -> list[Event]:
        async with AsyncEngine(core()) as engine:
            with pytest.raises(ConfigError, match="token id 17"):
                await collect(engine, [17], SamplingParams())
            with pytest.raises(ConfigError, match="strategy 'dspork' is unknown"):
                async for _ in engine.generate([1], SamplingParams(), strategy="dspork"):
                    pass
            return await collect(engine, [1], SamplingParams(max_tokens=3))

    assert asyncio.run(asyncio.wait_for(serve(), 20))[-1].finish_reason == "length"


def test_closing_and_failing_tell_every_stream_and_every_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closed() -> None:
        engine = AsyncEngine(core())
        stream = engine.generate([0], ENDLESS)
        await anext(stream)
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError, match="closed"):
            async for _ in stream:
                pass
        with pytest.raises(EngineError, match="closed"):
            await collect(engine, [1], SamplingParams())

    async def failed() -> None:
        inner = core()
        async with AsyncEngine(inner) as engine:
            stream = engine.generate([0], ENDLESS)
            await anext(stream)

            def fail() -> None:
                raise RuntimeError("no more tokens today")

            monkeypatch.setattr(inner, "step", fail)
            with pytest.raises(EngineError, match="no more tokens today"):
                async for _ in stream:
                    pass
            with pytest.raises(EngineError, match="no more tokens today"):
                await collect(engine, [1], SamplingParams())

    asyncio.run(asyncio.wait_for(closed(), 20))
    asyncio.run(asyncio.wait_for(failed(), 20))


class Slow(FakeTarget):
    """Every forward takes a moment, so that a coroutine can act during a step."""

    def forward(self, *arguments: Any) -> TargetOutput:
        time.sleep(0.05)
        return super().forward(*arguments)


def slow_core() -> EngineCore:
    options = EngineOptions(4, pages=800, scheduler=SchedulerConfig("fixed", park=False))
    return EngineCore(Slow(HashedLaw(V, 1, 2), V, 2, max_positions=6_000), options=options)


def test_cancelling_before_the_engine_has_taken_the_request_in_is_not_lost() -> None:
    async def serve() -> bool:
        inner = slow_core()
        async with AsyncEngine(inner) as engine:
            other = engine.generate([1], SamplingParams(max_tokens=6, ignore_eos=True))
            await anext(other)  # the next step runs now, and calls wait for its end
            late = asyncio.create_task(collect(engine, [2], ENDLESS))
            await asyncio.sleep(0.01)
            late.cancel()
            await asyncio.wait([late])
            assert [event async for event in other][-1].finish_reason == "length"
            await asyncio.sleep(0.2)
            return inner.idle

    assert asyncio.run(asyncio.wait_for(serve(), 20))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_whose_loop_is_closed_ends_its_requests_and_no_others() -> None:
    inner = slow_core()
    engine = AsyncEngine(inner)
    try:
        for waits in (0.01, 0.12):  # the loop closes before the request is taken in, and in the middle of its stream
            loop = asyncio.new_event_loop()
            loop.run_until_complete(anext(engine.generate([1], SamplingParams(max_tokens=3, ignore_eos=True))))
            abandoned = loop.create_task(collect(engine, [2], ENDLESS))
            loop.run_until_complete(asyncio.sleep(waits))
            loop.close()
            last = asyncio.run(asyncio.wait_for(collect(engine, [3], SamplingParams(max_tokens=8)), 20))[-1]
            assert last.finish_reason in ("stop", "length")
            assert not abandoned.done()
            del abandoned
            gc.collect()  # what is left of a closed loop complains here
        time.sleep(0.2)
        assert inner.idle
    finally:
        engine.close()


def test_refusals_of_an_engine_that_has_ended_share_no_traceback() -> None:
    async def refusals() -> list[BaseException]:
        engine = AsyncEngine(core())
        await asyncio.to_thread(engine.close)
        found = await asyncio.gather(*[collect(engine, [1], ENDLESS) for _ in range(3)], return_exceptions=True)
        return [one for one in found if isinstance(one, EngineError)]

    errors = asyncio.run(refusals())
    assert len({id(error) for error in errors}) == 3
