"""Random numbers that depend on nothing but a request's seed and where in its output they are used (contract 2)."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from dspark.errors import ConfigError

SEED_LIMIT = 2**64


class Stream(IntEnum):
    """What a random number decides. The members are part of the key, so their values never change."""

    DRAFT = 0
    """Which token the drafter proposes."""
    ACCEPT = 1
    """Whether a proposed token survives."""
    RECOVER = 2
    """Which token the target emits itself: after a rejection, as bonus, in plain decoding, after the prompt."""


@dataclass(frozen=True, slots=True)
class RandomStreams:
    """Counter-based uniforms of one request (Philox4x64: key = seed and stream, counter = round and position).

    The counter holds the round beside the position, because a position can be drafted more than once: block
    verification and budgets from past confidences look at drafts beyond the point where a round ends, so their
    random numbers are no longer fresh when the next round drafts the same positions again. A round is named by the
    output position of its first token, which the request's own past determines; hence no dependence on batch,
    order or preemption (docs/decisions/0004).
    """

    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEED_LIMIT:
            raise ConfigError(f"seed is {self.seed}; expected an integer from 0 to 2^64 - 1")

    def uniforms(self, stream: Stream, start: int, count: int) -> tuple[float, ...]:
        """Uniforms in [0, 1) for output positions start, ..., start + count - 1 of the round that begins at `start`.

        Position 0 is the first token after the prompt. A longer call begins with the values of a shorter one.
        """
        return tuple(UniformReader().read(self.seed, stream, start, count))


class UniformReader:
    """Reads the uniforms of many requests with one generator, as making a generator costs more than its numbers.

    It is made when the first of them is read: greedy requests read none.
    """

    @cached_property
    def _philox(self) -> np.random.Philox:
        return np.random.Philox(key=0)

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.Generator(self._philox)

    @cached_property
    def _state(self) -> Any:
        return self._philox.state

    def read(self, seed: int, stream: Stream, start: int, count: int) -> list[float]:
        """What `RandomStreams(seed).uniforms(stream, start, count)` gives."""
        if count == 0:
            return []
        key = np.array((seed, stream), dtype=np.uint64)
        counter = np.array((0, start, 0, 0), dtype=np.uint64)
        self._state["state"] = {"counter": counter, "key": key}
        self._philox.state = self._state
        uniforms: list[float] = self._random.random(count).tolist()
        return uniforms
