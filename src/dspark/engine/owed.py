"""Features that drafters have not been shown yet. m taps, d width."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspark.engine.ragged import extend_ragged
from dspark.engine.running import Running
from dspark.types import Cache, Drafter


@dataclass(frozen=True, slots=True)
class Entry:
    """`counts[i]` positions each of `owners[i]`, whose drafter's cache was `caches[i]`, with features [N, m * d]."""

    drafter: Drafter
    owners: Sequence[Running]
    caches: Sequence[Cache]
    counts: Sequence[int]
    features: Tensor


class OwedFeatures:
    """What rounds leave to be shown to drafters: at once, or several rounds together while nobody drafts.

    A request that gave its pages back has no claim any more.
    """

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._owed: dict[int, int] = {}  # by the identity of caches, which live as long as their entries do

    @property
    def rows(self) -> int:
        """Positions owed to all drafters, to those of requests that have left since, too."""
        return sum(len(entry.features) for entry in self._entries)

    def of(self, running: Running) -> int:
        """Positions owed to the drafter of one request."""
        return self._owed.get(id(running.draft_cache), 0)

    def add(self, drafter: Drafter, owners: Sequence[Running], counts: Sequence[int], features: Tensor) -> None:
        """Owe the next `counts[i]` positions of `owners[i]`, whose features [N, m * d] come in this order."""
        caches = [running.draft_cache for running in owners]
        known = [cache for cache in caches if cache is not None]
        assert len(known) == len(owners)
        self._entries.append(Entry(drafter, owners, known, counts, features))
        for running, count in zip(owners, counts, strict=True):
            self._owed[id(running.draft_cache)] = self.of(running) + count

    def settle(self) -> list[Running]:
        """Show everything, and tell who has been shown something."""
        shown: dict[Running, None] = {}
        for drafter in {id(entry.drafter): entry.drafter for entry in self._entries}.values():
            entries = [entry for entry in self._entries if entry.drafter is drafter]
            shown |= dict.fromkeys(_show(drafter, entries))
        self._clear()
        return list(shown)

    def forgive(self) -> None:
        """Forget all; requests read again what their drafters have not seen, as they read prompts."""
        for entry in self._entries:
            for running, cache in zip(entry.owners, entry.caches, strict=True):
                if running.draft_cache is cache and running.target_cache.length > cache.length:
                    running.target_cache.rollback(cache.length)
        self._clear()

    def _clear(self) -> None:
        self._entries.clear()
        self._owed.clear()


def _show(drafter: Drafter, entries: Sequence[Entry]) -> list[Running]:
    """Extend the caches of those who still have them by all entries; who that was."""
    claims = [
        (running, count, running.draft_cache is cache)
        for entry in entries
        for running, cache, count in zip(entry.owners, entry.caches, entry.counts, strict=True)
    ]
    places = {running: place for place, running in enumerate(dict.fromkeys(one for one, _, holds in claims if holds))}
    owner = np.repeat([places[one] if holds else -1 for one, _, holds in claims], [count for _, count, _ in claims])
    features = torch.cat([entry.features for entry in entries]) if len(entries) > 1 else entries[0].features
    order = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
    if not np.array_equal(order, np.arange(len(features))):
        features = features[torch.from_numpy(order).to(features.device)]
    counts = np.bincount(owner[owner >= 0], minlength=len(places))
    caches = [running.draft_cache for running in places if running.draft_cache is not None]
    if caches:
        extend_ragged(drafter, features, caches, counts.tolist())
    return list(places)
