"""The last survivals known of each request, no younger than an overlapped engine has them. Shapes: B, gamma as ever."""

from collections import deque
from dataclasses import dataclass, replace
from math import log1p

import numpy as np
from numpy.typing import NDArray

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.persistence import Persistence
from dspark.scheduling.probe import TELLING, weight

MEAN_RATE = 0.05
"""How far each round that passes moves the mean that newcomers are taken for, where it is of a crowd; the first ones
move it by more."""


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Survivals [gamma, B] of the requests `keys` in round `number`, and their mean [gamma] if it is known."""

    number: int
    keys: Ints
    survival: Floats
    mean: Floats | None = None
    surprise: tuple[Floats, Floats] | None = None
    """Deviations [gamma, B] from the mean: what was known when the round was planned, and what it showed."""

    def average(self) -> Floats:
        """The mean of the requests [gamma]."""
        if self.mean is not None:
            return self.mean
        sums: Floats = np.einsum("jr->j", self.survival)  # a third of the time that mean() takes
        return sums / len(self.keys)


class SurvivalHistory:
    """Survivals by request key, not by slot: a slot that changes hands tells nothing about its new owner.

    Newcomers are taken for the mean of all earlier rounds, for confident while there is none (decision 0009). Others
    are expected to come back to it as fast as requests here have (decision 0021). Another gamma, of a round that is
    learned from or asked for, forgets everything before it but how fast that was.

    Raises:
        ConfigError: `lag` is below 1: this round's confidences depend on this round's drafts.
    """

    def __init__(self, lag: int) -> None:
        if lag < 1:
            raise ConfigError(f"lag is {lag}; a budget must not depend on this round's drafts: expected 1 or more")
        self._lag = lag
        self._young: deque[_Seen] = deque()
        self._old: list[_Seen] = []
        self._mean: Floats = np.ones(0)
        self._rounds = 0
        self._passed = 0.0
        self._persistence = Persistence()
        self._asked: deque[_Seen] = deque()

    def record(self, number: int, keys: Ints, survival: Floats) -> None:
        """Remember the survivals [gamma, B] of round `number`."""
        self._young.append(_Seen(number, keys, survival, surprise=self._surprise(number, keys, survival)))

    def prepare(self) -> None:
        """Do after a round, when nobody waits, what the next `recall` would have to do. May be left out."""
        if self._young:
            last = self._young[-1]
            self._young[-1] = replace(last, mean=last.average())

    def recall(self, number: int, keys: Ints, gamma: int) -> Floats:
        """For each key, the survivals [gamma, B] to expect of round `number`, by rounds `number` - lag and before.

        Keys that are not asked for are forgotten, unless they are in younger rounds.
        """
        while self._young and self._young[0].number <= number - self._lag:
            self._learn(self._young.popleft())
        self._expect(gamma)
        if not self._old:
            return np.ones((gamma, len(keys)), dtype=np.float32)
        survival = self._last_known(keys)
        self._asked.append(_Seen(number, keys, survival, self._mean))
        return self._persistence.expected(self._mean, survival)

    def _last_known(self, keys: Ints) -> Floats:
        """For each key, its survivals [gamma, B] of the last round that may be known; the mean for newcomers."""
        newest = self._old[-1]
        if newest.keys.dtype == keys.dtype and newest.keys.tobytes() == keys.tobytes():  # a fifth of array_equal's time
            self._old = [newest]
            return newest.survival
        survival, known = _overlaid(self._old, keys, self._mean)
        self._old = [_Seen(newest.number, keys[known], survival[:, known])]
        return survival

    def _surprise(self, number: int, keys: Ints, survival: Floats) -> tuple[Floats, Floats] | None:
        """What `survival` in round `number` adds to what is known of how long deviations last."""
        while self._asked and self._asked[0].number < number:
            self._asked.popleft()
        if not self._asked or self._asked[0].number > number:
            return None
        asked = self._asked.popleft()
        if len(survival) != len(asked.survival):
            return None
        mean = asked.average()[:, None]
        _, now, then = np.intersect1d(keys, asked.keys, assume_unique=True, return_indices=True)
        return asked.survival[:, then] - mean, survival[:, now] - mean

    def _learn(self, seen: _Seen) -> None:
        mean = seen.average()
        self._expect(len(mean))
        if not self._old:
            self._mean, self._rounds, self._passed = mean, 0, 0.0
        self._rounds += 1
        share = self._share(len(seen.keys), seen.number - self._old[-1].number if self._old else 1)
        self._mean = self._mean + max(share, 1 / self._rounds) * (mean - self._mean)
        if seen.surprise is not None:
            self._persistence.learn(*seen.surprise)
        self._old.append(seen)

    def _share(self, requests: int, passed: int) -> float:
        """How far a round of `requests` moves the mean, `passed` rounds after the last one that was learned from.

        What rounds of rest have saved up is spent on `TELLING` blocks, not on one.
        """
        self._passed += passed
        rate = weight(MEAN_RATE, requests)
        most, share = max(requests / TELLING, rate), 1 - float((1 - rate) ** self._passed)
        if share <= most:
            self._passed = 0.0
            return share
        self._passed -= log1p(-most) / log1p(-rate)
        return most

    def _expect(self, gamma: int) -> None:
        if self._old and len(self._old[-1].survival) != gamma:
            self._old = []


def _overlaid(layers: list[_Seen], keys: Ints, mean: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The last layer's survival [gamma, B] of each key, `mean` [gamma] for those in none; and which are in one [B]."""
    survival = np.repeat(mean[:, None], len(keys), axis=1)
    known = np.zeros(len(keys), dtype=bool)
    for layer in layers:
        if not len(layer.keys):
            continue
        order = np.argsort(layer.keys)
        slots = order[np.minimum(np.searchsorted(layer.keys, keys, sorter=order), len(order) - 1)]
        found = layer.keys[slots] == keys
        survival[:, found] = layer.survival[:, slots[found]]
        known |= found
    return survival, known
