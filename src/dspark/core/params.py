"""Checks on `SamplingParams`: every refusal names the field, what it holds and what it may hold."""

import math
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any

from dspark.core.streams import SEED_LIMIT
from dspark.errors import ConfigError
from dspark.types import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this take the most likely token (the limit of DeepSpec and vLLM)."""


PENALTY_LIMIT = 1e6
"""Largest presence and frequency penalty either way, and largest repetition penalty (or one over it).

Float32 logits stay finite behind them: a frequency penalty times a million occurrences over the smallest temperature is
1e17, of at most 3.4e38.
"""

MAX_LOGPROBS = 20
"""Most alternatives that a request may ask for at a position (the limit of the OpenAI API)."""


def is_greedy(params: SamplingParams) -> bool:
    """Whether these parameters leave nothing to chance."""
    return params.temperature < GREEDY_BELOW


def has_penalties(params: SamplingParams) -> bool:
    """Whether the logits depend on which tokens occurred before."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def check_sampling(params: SamplingParams, vocab_size: int | None = None) -> None:
    """Refuse parameters that cannot work; with `vocab_size`, stop token ids outside the vocabulary too.

    Raises:
        ConfigError: names the first offending field, or says what stands in the place of parameters.
    """
    if not isinstance(params, SamplingParams):
        raise ConfigError(f"the parameters are {params!r:.60} of type {type(params).__name__}; expected SamplingParams")
    for name, holds, expected in _checks(math.inf if vocab_size is None else vocab_size):
        value = getattr(params, name)
        if not holds(value):
            raise ConfigError(f"{name} is {value!r}; expected {expected}")


def _checks(vocab_size: float) -> Iterator[tuple[str, Callable[[Any], bool], str]]:
    yield "temperature", lambda x: _is_real(x) and x >= 0, "a finite number, 0 (greedy) or more"
    yield "top_k", _is_count, "a whole number, 0 (off) or more"
    yield "top_p", lambda x: _is_real(x) and 0 < x <= 1, "a number above 0 and at most 1 (off)"
    yield "min_p", lambda x: _is_real(x) and 0 <= x <= 1, "a number from 0 (off) to 1"
    scaled, added = f"a number from {1 / PENALTY_LIMIT:g} to {PENALTY_LIMIT:g}", f"a number within +-{PENALTY_LIMIT:g}"
    yield (
        "repetition_penalty",
        lambda x: _is_real(x) and 1 / PENALTY_LIMIT <= x <= PENALTY_LIMIT,
        f"{scaled} (1 is off)",
    )
    for name in ("presence_penalty", "frequency_penalty"):
        yield name, lambda x: _is_real(x) and abs(x) <= PENALTY_LIMIT, f"{added} (0 is off)"
    yield "seed", lambda x: _is_count(x) and x < SEED_LIMIT, "a whole number from 0 to 2^64 - 1"
    yield "max_tokens", lambda x: _is_count(x) and x >= 1, "a whole number, 1 or more"
    yield "stop", lambda x: _is_list(x) and all(isinstance(text, str) and text for text in x), "non-empty strings"
    yield (
        "stop_token_ids",
        lambda x: _is_list(x) and all(_is_count(token) and token < vocab_size for token in x),
        f"token ids, 0 or more and below {vocab_size}" if math.isfinite(vocab_size) else "token ids, 0 or more",
    )
    most = min(MAX_LOGPROBS, vocab_size)
    yield (
        "logprobs",
        lambda x: x is None or (_is_count(x) and x <= most),
        f"None (off) or the number of likeliest tokens to tell beside, 0 to {most}",
    )


def _is_real(value: object) -> bool:
    return type(value) is not bool and isinstance(value, Real) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 0


def _is_list(value: object) -> bool:
    return isinstance(value, tuple | list)
