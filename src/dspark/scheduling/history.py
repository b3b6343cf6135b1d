"""The last survivals known of each request, no younger than an overlapped engine has them. Shapes: B, gamma as ever."""

import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
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
    """Survivals [slots, B] of the requests `keys` in round `number`, and their mean [slots] if it is known."""

    number: int
    keys: Ints
    survival: Floats
    gamma: int
    mean: Floats | None = None
    surprise: tuple[Floats, Floats] | None = None
    """Deviations [slots, B] from the mean: what was known when the round was planned, and what it showed."""

    def average(self) -> Floats:
        """The mean of the requests [slots]."""
        if self.mean is not None:
            return self.mean
        sums: Floats = np.einsum("jr->j", self.survival)  # a third of the time that mean() takes
        return sums / len(self.keys)


class SurvivalHistory:
    """Survivals by request key, not by slot: a slot that changes hands tells nothing about its new owner.

    Newcomers are taken for the mean of all earlier rounds, for confident while there is none (decision 0009). Others
    are expected to come back to it as fast as requests here have (decision 0021). Beyond the slots that a round had,
    drafts are taken to survive as in the mean, where unseen slots change as the last seen one. Another gamma, of a
    round that is learned from or asked for, forgets everything before it but how fast that was.

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
        self._chances, self._falls = list[float](), list[float]()
        self._rounds = 0
        self._passed = 0.0
        self._persistence = Persistence()
        self._asked: deque[_Seen] = deque()

    def record(self, number: int, keys: Ints, survival: Floats, gamma: int | None = None) -> None:
        """Remember the survivals [slots, B] of round `number`, of blocks that might have had `gamma` (None: had)."""
        gamma = len(survival) if gamma is None else gamma
        self._young.append(_Seen(number, keys, survival, gamma, surprise=self._surprise(number, keys, survival, gamma)))

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
        self._asked.append(_Seen(number, keys, survival, gamma, self._mean))
        return self._persistence.expected(self._mean, survival)

    @property
    def known(self) -> bool:
        """Whether there are rounds that may be known."""
        return bool(self._old)

    def typical(self, gamma: int) -> Floats:
        """The mean survival [gamma] of all rounds that may be known; 1 while there is none."""
        return self._mean if self._old and len(self._mean) == gamma else np.ones(gamma)

    def _last_known(self, keys: Ints) -> Floats:
        """For each key, its survivals [gamma, B] of the last round that may be known; the mean for newcomers."""
        newest = self._old[-1]
        if newest.keys.dtype == keys.dtype and newest.keys.tobytes() == keys.tobytes():  # a fifth of array_equal's time
            self._old = [newest]
            return newest.survival
        survival, known = _overlaid(self._old, keys, self._mean)
        self._old = [_Seen(newest.number, keys[known], survival[:, known], newest.gamma)]
        return survival

    def _surprise(self, number: int, keys: Ints, survival: Floats, gamma: int) -> tuple[Floats, Floats] | None:
        """What `survival` in round `number` adds to what is known of how long deviations last."""
        while self._asked and self._asked[0].number < number:
            self._asked.popleft()
        if not self._asked or self._asked[0].number > number:
            return None
        asked = self._asked.popleft()
        if gamma != asked.gamma:
            return None
        slots = len(survival)
        mean = asked.average()[:slots, None]
        _, now, then = np.intersect1d(keys, asked.keys, assume_unique=True, return_indices=True)
        return asked.survival[:slots, then] - mean, survival[:, now] - mean

    def _learn(self, seen: _Seen) -> None:
        self._expect(seen.gamma)
        if not self._old:
            self._mean, self._rounds, self._passed = np.ones(0), 0, 0.0
        self._rounds += 1
        share = self._share(len(seen.keys), seen.number - self._old[-1].number if self._old else 1)
        self._follow(seen.average(), seen.gamma, max(share, 1 / self._rounds))
        seen = self._completed(seen)
        if seen.surprise is not None:
            self._persistence.learn(*seen.surprise)
        self._old.append(seen)

    def _completed(self, seen: _Seen) -> _Seen:
        """`seen` with survivals [gamma, B], those beyond its slots as the mean has them behind the last one."""
        slots = len(seen.survival)
        if slots == seen.gamma:
            return seen
        tail = np.array(list(accumulate(self._chances[slots:], operator.mul)), dtype=seen.survival.dtype)
        return replace(seen, survival=np.concatenate([seen.survival, seen.survival[-1] * tail[:, None]]))

    def _follow(self, mean: Floats, gamma: int, share: float) -> None:
        """Move the mean by `share` to that of a round [slots]; unseen chances change as the last seen one does.

        What chances are to the one before is kept from when both were seen, so that no guess becomes its own evidence.
        """
        slots = len(mean)
        head = mean.copy() if len(self._mean) != gamma else self._mean[:slots] + share * (mean - self._mean[:slots])
        if len(self._mean) != gamma:
            self._falls = [1.0] * gamma
        chances = _chances(head.tolist())
        self._falls[1:slots] = [after / before if before > 0 else 1.0 for before, after in pairwise(chances)]
        for fall in self._falls[slots:]:
            chances.append(min(chances[-1] * fall, 1.0))
        self._chances = chances
        self._mean = np.array(list(accumulate(chances, operator.mul)))

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
        if self._old and self._old[-1].gamma != gamma:
            self._old = []


def _chances(survival: Sequence[float]) -> list[float]:
    """Of each draft behind those that survive, from survivals."""
    return [after / before if before > 0 else 0.0 for before, after in pairwise([1.0, *survival])]


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
