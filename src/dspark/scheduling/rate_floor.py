"""Floors from a promised speed: an SLA in tokens per second becomes a number of drafts."""

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints


def rate_floors(rates: Floats, survival: Floats, round_seconds: float) -> Ints:
    """The fewest drafts [B] with which each request is expected to reach `rates` [B] tokens per second.

    `survival` [gamma, B] must be of earlier rounds, or of the drafter on average; a round takes `round_seconds`. Where
    gamma drafts do not suffice, gamma it is: the promise then needs a smaller batch.

    Raises:
        ConfigError: shapes do not agree, or a rate is negative or NaN.
    """
    if rates.ndim != 1 or survival.shape[1:] != rates.shape:
        raise ConfigError(f"rates {rates.shape} and survival {survival.shape} disagree; expected [B] and [gamma, B]")
    if not (rates >= 0).all():
        raise ConfigError("rates must be 0 (no promise) or more tokens per second")
    expected = 1 + np.cumsum(survival, axis=0)[:-1]
    needed = rates * round_seconds
    floors: Ints = (needed > 1).astype(np.int64) + (expected < needed).sum(axis=0)
    return floors
