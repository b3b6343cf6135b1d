"""A confidence for drafters that have no confidence head, so that every schedule serves every drafter."""

import numpy as np
from torch import Tensor

from dspark.calibration.logistic import LogisticSurvival
from dspark.calibration.signals import RoundHistory, Signals, law_entropy, peak_log_odds
from dspark.core.tau import Round
from dspark.errors import ConfigError
from dspark.types import Cache, DraftBlock, Drafter


class EstimatedConfidence:
    """A `Drafter` that proposes what `drafter` proposes and adds the confidence logits of an estimator.

    The estimator reads each slot's draft distribution and how the request's earlier rounds went, which its cache is
    told as a `RoundMemory`; never the token drawn in the slot (contract 2).
    """

    def __init__(self, drafter: Drafter, estimator: LogisticSurvival) -> None:
        self.info = drafter.info
        self._drafter, self._estimator = drafter, estimator

    def new_cache(self, capacity: int) -> Cache:
        """The drafter's own cache and the request's history."""
        return _HistoryCache(self._drafter.new_cache(capacity))

    def extend(self, features: Tensor, cache: Cache) -> None:
        """As the drafter does."""
        own = _own(cache)
        self._drafter.extend(features, own.inner)
        own.length = own.inner.length

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> DraftBlock:
        """The drafter's block, with confidences."""
        own = _own(cache)
        return _EstimatedBlock(self._drafter.begin(anchor, own.inner, gamma), self._estimator, own.history.value)


class _HistoryCache:
    """The drafter's cache, and a `RoundMemory`."""

    def __init__(self, inner: Cache) -> None:
        self.inner, self.history = inner, RoundHistory()
        self.length, self.capacity = inner.length, inner.capacity

    def rollback(self, length: int) -> None:
        self.inner.rollback(length)
        self.length = self.inner.length

    def judged(self, entry: Round) -> None:
        self.history.update(entry.accepted, entry.judged)


class _EstimatedBlock:
    def __init__(self, block: DraftBlock, estimator: LogisticSurvival, history: float) -> None:
        self._block, self._estimator = block, estimator
        self._history = np.array([history])
        self._peaks: list[float] = []
        self._entropies: list[float] = []

    def step(self, previous: int) -> tuple[Tensor, float | None]:
        logits, _ = self._block.step(previous)
        law = logits.float().numpy(force=True)
        self._peaks.append(float(peak_log_odds(law)))
        self._entropies.append(float(law_entropy(law)))
        signals = Signals(None, np.array([self._peaks]), self._history, np.array([self._entropies]))
        return logits, float(self._estimator.conditional_logits(signals)[0, -1])


def _own(cache: Cache) -> _HistoryCache:
    if not isinstance(cache, _HistoryCache):
        raise ConfigError(f"the cache is a {type(cache).__name__}; use one made by this drafter's new_cache")
    return cache
