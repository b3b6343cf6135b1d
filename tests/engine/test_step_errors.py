"""What goes wrong in a step: the error of one request ends that one, any other leaves all of them as they were."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark.engine.async_engine import AsyncEngine
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.events import Event
from dspark.engine.strategy import Strategy
from dspark.errors import ConfigError
from dspark.scheduling.registry import SchedulerConfig
from dspark.types import SamplingParams
from tests.engine.paged import PagedDrafter, PagedTarget, rest

V, GAMMA, TOKENS = 5, 3, 20
POISON = V - 1
PLAIN = SchedulerConfig("fixed", park=False)


def paged(**options: Any) -> tuple[PagedTarget, PagedDrafter, EngineCore]:
    target = PagedTarget(V, 1)
    drafter = PagedDrafter(target, GAMMA)
    chosen = EngineOptions(4, 64, 16, pages=40, scheduler=PLAIN, lookup=None, **options)
    return target, drafter, EngineCore(target, [Strategy("drafts", drafter)], chosen)


def params(i: int = 0) -> SamplingParams:
    """Greedy ones and sampled ones, with penalties and without, so that all ways of judging occur."""
    return [
        SamplingParams(max_tokens=TOKENS),
        SamplingParams(1.0, seed=i, max_tokens=TOKENS),
        SamplingParams(max_tokens=TOKENS, presence_penalty=0.1),
    ][i % 3]


def drain(core: EngineCore) -> dict[int, Event]:
    ends: dict[int, Event] = {}
    for _ in range(1_000):
        if core.idle:
            break
        ends |= {event.request_id: event for event in core.step() if event.result is not None}
    assert core.idle
    assert core.memory.manager.used == 0
    return ends


def undisturbed(prompt: list[int], own: SamplingParams) -> tuple[int, ...]:
    """What an engine of its own gives the request, where nothing goes wrong."""
    core = paged()[2]
    number = core.add(prompt, own)
    result = drain(core)[number].result
    assert result is not None
    return result.token_ids


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("length", [2, 6], ids=["first token", "round"])
def test_who_cannot_be_judged_ends_alone_and_says_why(value: float, length: int) -> None:
    target, _, core = paged()
    law = target.law

    def poisoned(text: Sequence[int]) -> Tensor:
        return torch.full((V,), value) if text[0] == POISON and len(text) >= length else law(text)

    target.law = poisoned
    prompts = [[0, 3], [1, 3], [2, 3]]
    others = [core.add(prompt, params(i)) for i, prompt in enumerate(prompts)]
    culprit = core.add([POISON, 3], params())
    ends = drain(core)
    for i, prompt in enumerate(prompts):
        result = ends[others[i]].result
        assert result is not None
        assert (result.finish_reason, result.error) == ("length", None)
        assert result.token_ids == undisturbed(prompt, params(i))
    event = ends[culprit]
    assert event.result is not None
    assert event.finish_reason == event.result.finish_reason == "error"
    assert event.error == event.result.error
    assert ("every token is masked" if value == -float("inf") else "NaN or +inf") in str(event.error)
    assert (len(event.result.token_ids) > 0) == (length > 2)


@pytest.mark.parametrize("where", ["forward_ragged", "logits", "extend_ragged", "begin_each"])
@pytest.mark.parametrize(
    ("before", "rests"), [*((n, range(0)) for n in range(1, 5)), *((n, range(2, 7)) for n in (5, 6, 7))]
)
def test_after_a_step_that_raised_all_requests_go_on_as_if_nothing_had_been(
    where: str, before: int, rests: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of fakes are all they remember: a cache that is a position too long or too short changes the text.

    While the scheduler `rests`, drafters are owed what the rounds kept; sampled texts would then be others.
    """
    own = [params(0 if rests else i) for i in range(3)]
    target, drafter, core = paged()
    rest(core, rests, monkeypatch)
    prompts = [[0, 3], [1] * 20, [2, 3]]
    numbers = [core.add(*both) for both in zip(prompts, own, strict=True)]
    told: dict[int, list[int]] = {number: [] for number in numbers}
    for _ in range(before):
        for event in core.step():
            told[event.request_id] += event.token_ids
    owner = target if hasattr(target, where) else drafter
    work = getattr(owner, where)

    def broken(*arguments: Any) -> Any:
        work(*arguments)
        raise MemoryError("no room")

    def some_steps() -> None:
        for _ in range(8):  # the first ones may draft nothing
            for event in core.step():
                told[event.request_id] += event.token_ids

    with monkeypatch.context() as patch:
        patch.setattr(owner, where, broken)
        with pytest.raises(MemoryError, match="no room"):
            some_steps()
    while not core.idle:
        for event in core.step():
            told[event.request_id] += event.token_ids
        assert core.last is not None
        assert core.last.accepted == core.last.verified, "a draft fell: the drafter's pages hold another context"
    assert core.memory.manager.used == 0
    for i, (number, prompt) in enumerate(zip(numbers, prompts, strict=True)):
        assert tuple(told[number]) == undisturbed(prompt, own[i]), f"{where}, request {i}"


def test_an_end_that_was_not_told_yet_is_told_after_a_step_that_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    target, _, core = paged()
    stays, leaves = core.add([0, 3], params()), core.add([1, 3], params())
    core.step()
    core.abort(leaves)

    def broken(*arguments: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(target, "forward_ragged", broken)
        with pytest.raises(MemoryError):
            core.step()
    ends = drain(core)
    assert ends[leaves].finish_reason == "abort"
    assert ends[stays].finish_reason == "length"


@pytest.mark.parametrize("waits", [False, True])
def test_ctrl_c_while_a_request_is_taken_in_leaves_nothing_that_never_ends(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = paged()[2]
    put = core._waiting.put

    def interrupted(request: Any) -> None:
        if waits:
            put(request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(core._waiting, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            core.add([0, 3], params())
    assert core.idle
    assert len(core._waiting) == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"presence_penalty": -1e39},
        {"frequency_penalty": 1e39, "temperature": 1.0},
        {"presence_penalty": -1e36, "temperature": 1e-4},
        {"repetition_penalty": 1e-45},
        {"repetition_penalty": 1e39},
    ],
)
def test_penalties_that_overflow_are_refused_and_hurt_nobody(bad: dict[str, float]) -> None:
    async def serve() -> Event:
        async with AsyncEngine(paged()[2]) as engine:
            good = engine.generate([0, 3], params())
            first = await anext(good)
            with pytest.raises(ConfigError, match="penalty is"):
                await anext(engine.generate([1], SamplingParams(**bad)))  # type: ignore[arg-type]
            return [first, *[event async for event in good]][-1]

    assert asyncio.run(asyncio.wait_for(serve(), 20)).finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_penalties_leave_something_to_draw(temperature: float, sign: int) -> None:
    core = paged()[2]
    penalty = sign * 1e6
    own = SamplingParams(
        temperature,
        presence_penalty=penalty,
        frequency_penalty=penalty,
        repetition_penalty=10.0 ** (6 * sign),
        max_tokens=120,
    )
    number = core.add([0, 3, 1], own)
    assert drain(core)[number].finish_reason == "length"
