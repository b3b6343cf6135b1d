"""The last survivals known of each request, no younger than an overlapped engine has them. Shapes: B, gamma as ever."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Survivals [gamma, B] of round `number`; the keys as bytes, which are quick to compare."""

    number: int
    keys: bytes
    survival: Floats


class SurvivalHistory:
    """Survivals by request key, not by slot: a slot that changes hands tells nothing about its new owner.

    Raises:
        ConfigError: `lag` is below 1: this round's confidences depend on this round's drafts.
    """

    def __init__(self, lag: int) -> None:
        if lag < 1:
            raise ConfigError(f"lag is {lag}; a budget must not depend on this round's drafts: expected 1 or more")
        self._lag = lag
        self._seen: deque[_Seen] = deque()

    def record(self, number: int, keys: Ints, survival: Floats) -> None:
        """Remember the survivals [gamma, B] of round `number`."""
        self._seen.append(_Seen(number, _packed(keys), survival))

    def recall(self, number: int, keys: Ints, gamma: int) -> Floats:
        """For each key, its survivals [gamma, B] of round `number` - lag or the last before; 1 where there are none.

        Keys that are not asked for are forgotten, unless they are in younger rounds.
        """
        due: list[_Seen] = []
        while self._seen and self._seen[0].number <= number - self._lag:
            due.append(self._seen.popleft())
        survival = _overlaid(due, keys, gamma)
        if due:
            self._seen.appendleft(_Seen(due[-1].number, _packed(keys), survival))
        return survival


def _overlaid(layers: list[_Seen], keys: Ints, gamma: int) -> Floats:
    """The last layer's survival of each key."""
    if layers and len(layers[-1].survival) == gamma and layers[-1].keys == _packed(keys):
        return layers[-1].survival
    survival = np.ones((gamma, len(keys)), dtype=np.float32)
    for layer in layers:
        owners = np.frombuffer(layer.keys, dtype=np.int64)
        order = np.argsort(owners)
        slots = order[np.minimum(np.searchsorted(owners, keys, sorter=order), len(order) - 1)]
        known = owners[slots] == keys
        positions = np.minimum(np.arange(gamma), len(layer.survival) - 1)
        survival[:, known] = layer.survival[np.ix_(positions, slots[known])]
    return survival


def _packed(keys: Ints) -> bytes:
    return keys.astype(np.int64, copy=False).tobytes()
