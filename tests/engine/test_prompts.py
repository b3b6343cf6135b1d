"""What may be a prompt, an option or a time, and that everything else is refused by name."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from dspark.core.hashed_law import HashedLaw
from dspark.engine.async_engine import AsyncEngine
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.prompts import prompt_list, token_ids
from dspark.errors import ConfigError
from dspark.scheduling.registry import SchedulerConfig
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams

V = 6


def core() -> EngineCore:
    options = EngineOptions(2, scheduler=SchedulerConfig("fixed", park=False))
    return EngineCore(FakeTarget(HashedLaw(V, 1, 2), V, 2), options=options)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        ((1, 2), [[1, 2]]),
        (np.array([1, 2]), [[1, 2]]),
        (torch.tensor([1, 2]), [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1, 2], "b", (3,), np.array([4])], [[1, 2], "b", [3], [4]]),
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([np.int64(1), 2], [[1, 2]]),
        ([], []),
        ([[]], [[]]),
    ],
)
def test_one_prompt_or_many(given: object, expected: list[object]) -> None:
    found = prompt_list(given)
    assert found == expected
    assert all(isinstance(one, str) or all(type(token) is int for token in one) for one in found)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([1, 2, "abc"], "'abc' of type str stands among token ids"),
        ([5, [1, 2]], r"\[1, 2\] of type list stands among token ids"),
        ([1, 2.0], "2.0 of type float stands among token ids"),
        ([[1, 2.5]], "holds 2.5 of type float"),
        ([1.0, 2.0], "is 1.0 of type float"),
        ([["a"]], "holds 'a' of type str"),
        ([True], "is True of type bool"),
        (None, "is None of type NoneType"),
        ([None], "is None of type NoneType"),
        (7, "is 7 of type int"),
        (b"abc", "of type bytes"),
        ({"prompt": 1}, "of type dict"),
        (np.array([1.5]), "is 1.5 of type float"),
    ],
)
def test_what_is_no_prompt_is_refused_and_not_dropped(given: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        prompt_list(given)


@pytest.mark.parametrize("prompt", ["abc", None, [1.0], [True], ["a"], 3, [[1]]])
def test_the_engine_itself_takes_token_ids_only(prompt: Any) -> None:
    with pytest.raises(ConfigError, match=r"the prompt (is|holds) .* of type"):
        core().add(prompt, SamplingParams())


def test_arrays_are_prompts_like_any_other() -> None:
    texts = []
    for prompt in ([1, 2], np.array([1, 2]), torch.tensor([1, 2])):
        engine = core()
        engine.add(prompt, SamplingParams(max_tokens=4))  # type: ignore[arg-type]
        texts.append([event.token_ids for _ in range(4) for event in engine.step()])
    assert texts[0] == texts[1] == texts[2] != []
    assert token_ids(np.array([3])) == [3]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"params": None}, "the parameters are None of type NoneType; expected SamplingParams"),
        ({"params": {"temperature": 1}}, "of type dict; expected SamplingParams"),
        ({"deadline": "soon"}, "deadline is 'soon'; expected a number of seconds"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"salt": 5}, "salt is 5; expected a text"),
        ({"strategy": ["none"]}, "is unknown"),
    ],
)
def test_what_else_a_request_may_not_say(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        core().add(**{"prompt_ids": [1], "params": SamplingParams(), **bad})


@pytest.mark.parametrize(
    "bad",
    [
        {"max_requests": "4"},
        {"max_requests": 2.5},
        {"prefill_chunk": True},
        {"pages": "many"},
        {"scheduler": "lagged"},
        {"rule": "block"},
        {"strategy": None},
        {"lookup": True},
        {"overlap": "yes"},
        {"tiers": (1, 2)},
    ],
)
def test_options_of_another_type_are_refused_by_name(bad: dict[str, Any]) -> None:
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError) as refused:
        EngineOptions(**bad)
    assert str(refused.value).startswith(f"{name} is {value!r}; expected ")


class Letters:
    """Tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return ["abcdef".index(letter) for letter in text]

    def detokeniser(self) -> "Letters":
        return self

    def push(self, token: int) -> str:
        return "abcdef"[token]

    def flush(self) -> str:
        return ""


def test_streams_hold_text_where_there_is_a_codec() -> None:
    async def serve() -> None:
        params = SamplingParams(max_tokens=6)
        async with AsyncEngine(core(), Letters()) as engine:
            events = [event async for event in engine.generate("bc", params)]
            result = events[-1].result
            assert result is not None
            text = "".join("abcdef"[token] for token in result.token_ids)
            assert "".join(event.text for event in events) == result.text == text
            assert len(text) == 6
            same = [event async for event in engine.generate([1, 2], params)]
            assert same[-1].result is not None
            assert same[-1].result.text == text
        async with AsyncEngine(core()) as engine:
            with pytest.raises(ConfigError, match="the text 'bc', but the engine has no codec"):
                await anext(engine.generate("bc", params))
            for seconds in (float("nan"), "soon"):
                with pytest.raises(ConfigError, match="seconds is"):
                    await anext(engine.generate([1], params, seconds=seconds))  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(serve(), 20))
