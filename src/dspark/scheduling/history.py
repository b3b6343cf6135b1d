"""The last survivals known of each request, no younger than an overlapped engine has them. Shapes: B, gamma as ever."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints

MEAN_RATE = 0.05
"""How far one round moves the mean that newcomers are taken for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Survivals [gamma, B] of the requests `keys` in round `number`, and their mean [gamma] if it is known."""

    number: int
    keys: Ints
    survival: Floats
    mean: Floats | None = None

    def average(self) -> Floats:
        """The mean of the requests [gamma]."""
        if self.mean is not None:
            return self.mean
        sums: Floats = np.einsum("jr->j", self.survival)  # a third of the time that mean() takes
        return sums / len(self.keys)


class SurvivalHistory:
    """Survivals by request key, not by slot: a slot that changes hands tells nothing about its new owner.

    Newcomers are taken for the mean of all earlier rounds, for confident while there is none (decision 0009). Another
    gamma, of a round that is learned from or asked for, forgets everything before it.

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

    def record(self, number: int, keys: Ints, survival: Floats) -> None:
        """Remember the survivals [gamma, B] of round `number`."""
        self._young.append(_Seen(number, keys, survival))

    def prepare(self) -> None:
        """Do after a round, when nobody waits, what the next `recall` would have to do. May be left out."""
        if self._young:
            last = self._young[-1]
            self._young[-1] = _Seen(last.number, last.keys, last.survival, last.average())

    def recall(self, number: int, keys: Ints, gamma: int) -> Floats:
        """For each key, its survivals [gamma, B] of round `number` - lag or the last before; the mean for newcomers.

        Keys that are not asked for are forgotten, unless they are in younger rounds.
        """
        while self._young and self._young[0].number <= number - self._lag:
            self._learn(self._young.popleft())
        self._expect(gamma)
        if not self._old:
            return np.ones((gamma, len(keys)), dtype=np.float32)
        newest = self._old[-1]
        if newest.keys.dtype == keys.dtype and newest.keys.tobytes() == keys.tobytes():  # a fifth of array_equal's time
            self._old = [newest]
            return newest.survival
        survival, known = _overlaid(self._old, keys, self._mean)
        self._old = [_Seen(newest.number, keys[known], survival[:, known])]
        return survival

    def _learn(self, seen: _Seen) -> None:
        mean = seen.average()
        self._expect(len(mean))
        if not self._old:
            self._mean = mean.copy()
        self._mean += MEAN_RATE * (mean - self._mean)
        self._old.append(seen)

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
