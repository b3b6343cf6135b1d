"""Refusals of sampling parameters: each names its field and value."""

import math
from typing import Any

import numpy as np
import pytest

from dspark.core.params import check_sampling, has_penalties, is_greedy
from dspark.errors import ConfigError
from dspark.types import SamplingParams

BAD: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "1"),
    ("temperature", True),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -math.inf),
    ("repetition_penalty", 1e-45),
    ("repetition_penalty", 1.1e6),
    ("presence_penalty", -1e39),
    ("frequency_penalty", 1.1e6),
    ("seed", -1),
    ("seed", 2**64),
    ("max_tokens", 0),
    ("stop", "END"),
    ("stop", ("",)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", 5),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", True),
    ("logprobs", 1.5),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        check_sampling(SamplingParams(**{name: value}))
    assert str(refused.value).startswith(f"{name} is {value!r}; expected ")


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1e30, top_k=10**9, top_p=1e-300, min_p=1.0, repetition_penalty=0.5),
        SamplingParams(
            presence_penalty=-2.0, frequency_penalty=2, seed=2**64 - 1, stop=("a", "b"), stop_token_ids=(0,)
        ),
        SamplingParams(temperature=np.float32(0.7), top_k=np.int64(5)),  # type: ignore[arg-type]
    ],
)
def test_odd_but_usable_values_pass(params: SamplingParams) -> None:
    check_sampling(params, vocab_size=8)


def test_stop_ids_are_checked_against_the_vocabulary() -> None:
    params = SamplingParams(stop_token_ids=(7, 8))
    check_sampling(params)
    with pytest.raises(ConfigError, match=r"stop_token_ids is \(7, 8\); expected token ids, 0 or more and below 8"):
        check_sampling(params, vocab_size=8)


def test_predicates() -> None:
    assert is_greedy(SamplingParams(temperature=0))
    assert is_greedy(SamplingParams(temperature=1e-6))
    assert not is_greedy(SamplingParams(temperature=1e-5))
    assert not has_penalties(SamplingParams(temperature=1, top_k=3))
    assert has_penalties(SamplingParams(repetition_penalty=1.1))
    assert has_penalties(SamplingParams(presence_penalty=-0.1))
    assert has_penalties(SamplingParams(frequency_penalty=0.1))
