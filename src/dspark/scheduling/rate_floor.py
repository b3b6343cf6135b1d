"""Floors from a promised speed: an SLA in tokens per second becomes a number of drafts."""

import math

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints


def rate_floors(rates: Floats, survival: Floats, round_seconds: float, caps: Ints | None = None) -> Ints:
    """The fewest drafts [B] with which each request is expected to reach `rates` [B] tokens per second.

    `survival` [gamma, B] must be of earlier rounds, or of the drafter on average; a round takes `round_seconds`. Where
    gamma drafts, or those that `caps` [B] allow, do not suffice, so many it is: the promise then needs a smaller batch.
    A `Batch` refuses floors that its `max_tokens` has no room for: leave room, or lower the rates.

    Raises:
        ConfigError: shapes do not agree, or an argument cannot be; the message names it.
    """
    if rates.ndim != 1 or survival.shape[1:] != rates.shape or (caps is not None and caps.shape != rates.shape):
        raise ConfigError(
            f"rates {rates.shape}, survival {survival.shape} and caps {None if caps is None else caps.shape} disagree; "
            "expected [B], [gamma, B] and [B]"
        )
    if not (rates >= 0).all():
        raise ConfigError("rates must be 0 (no promise) or more tokens per second")
    if not ((survival >= 0) & (survival <= 1)).all():
        raise ConfigError("survival must be probabilities; look for NaN, and give survivals, not logits")
    if not 0 < round_seconds < math.inf:
        raise ConfigError(f"round_seconds is {round_seconds}; expected the time of a round, above 0")
    expected = 1 + np.cumsum(survival, axis=0)[:-1]
    needed = rates * round_seconds
    floors: Ints = (needed > 1).astype(np.int64) + (expected < needed).sum(axis=0)
    return floors if caps is None else np.minimum(floors, caps)
