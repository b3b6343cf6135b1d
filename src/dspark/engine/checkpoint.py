"""How far the caches of requests reached before a step, for the case that the step fails."""

from collections.abc import Iterable

from dspark.engine.running import Running
from dspark.types import Cache


class Checkpoint:
    """The lengths of both caches of `requests`, all of which have a seat."""

    def __init__(self, requests: Iterable[Running]) -> None:
        self._held = [(one, one.computed, 0 if one.draft_cache is None else one.draft_cache.length) for one in requests]

    def restore(self) -> None:
        """Take both caches back to where they were, or to what was committed for good since then.

        Tokens that the step committed stay: a request whose caches end before its anchor reads on, as a prompt does.
        One whose drafter had been shown less than its target reads that again.
        """
        for running, target, draft in self._held:
            safe = 0 if running.lease is None else running.lease.length
            if running.draft_cache is not None:
                _cut(running.draft_cache, max(draft, safe))
                target = min(target, draft)
            _cut(running.target_cache, max(target, safe))


def _cut(cache: Cache, length: int) -> None:
    if cache.length > length:
        cache.rollback(length)
