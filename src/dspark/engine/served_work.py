"""The work of a round of many requests, for the clock: what they verify and draft, in pages as an engine has them.

Nothing is computed beforehand: what keys and values hold makes no difference to the time, so pages count as filled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dspark.engine.profile_plan import ProfilePlan
from dspark.nn.pages import PAGE, PagedCache, PagePool, PageTable, pages_for
from dspark.types import BatchDrafter, Drafter, GreedyBlocks, GreedyTarget, Pages, RaggedTarget

SHARED_POSITIONS = 8192
"""Requests of a long context read the same pages beyond so many positions: more than any cache of a processor holds."""

FILLING = 0.01
COMMITTED = 2
"""Positions that the drafter is shown of each request after a round: about what is accepted."""


@dataclass(frozen=True, slots=True)
class VerifyPoint:
    """A verification of `tokens` rows of `requests` after `context` positions of each."""

    context: int
    tokens: int
    requests: int = 1


@dataclass(frozen=True, slots=True)
class DraftPoint:
    """Blocks of `slots` of `requests` at once, and showing the drafter what they committed."""

    requests: int
    slots: int


class ServedWork:
    """Pieces of work of `plan` for a target, and for a drafter that drafts batches; others are left out."""

    def __init__(self, target: RaggedTarget, drafter: Drafter | None, plan: ProfilePlan) -> None:
        self._target, self._plan = target, plan
        self._drafter = drafter if isinstance(drafter, BatchDrafter) else None
        self._taps = () if drafter is None else drafter.info.target_layer_ids
        self._most, self._rows = plan.requests[-1], plan.gamma + 1
        shared = max(self._shared(context) for context in plan.contexts)
        self._own = pages_for(PAGE + self._rows)
        pages = shared + self._most * self._own
        self._pool = _filled(target.new_pages(pages))
        self._draft_pool = None if self._drafter is None else _filled(self._drafter.new_pages(pages))
        self._first_own = shared

    def verification(self) -> dict[VerifyPoint, Callable[[], None]]:
        """Every size at every context, and as many rows as requests with few and with many owners."""
        plan, work = self._plan, dict[VerifyPoint, Callable[[], None]]()
        for context in plan.contexts:
            points = [(tokens, plan.spread(tokens)) for tokens in plan.tokens]
            points += [(self._most, owners) for owners in plan.owners() or ()]
            for tokens, requests in points:
                work[VerifyPoint(context, tokens, requests)] = self._verify(context, tokens, requests)
        return work

    def drafting(self) -> dict[DraftPoint, Callable[[], None]]:
        """Blocks of every number of requests, the shortest and whole ones, after the middle one of the contexts."""
        if self._drafter is None or not self._plan.drafts:
            return {}
        context = self._plan.contexts[len(self._plan.contexts) // 2]
        return {
            DraftPoint(requests, slots): self._draft(context, requests, slots)
            for requests in self._plan.requests
            for slots in self._plan.widths
        }

    def _verify(self, context: int, tokens: int, requests: int) -> Callable[[], None]:
        target, taps = self._target, self._taps
        caches, counts = self._caches(self._pool, context, requests), divided(tokens, requests)
        ids = torch.arange(tokens) % target.info.vocab_size

        judge = target.best_tokens if isinstance(target, GreedyTarget) else target.logits  # as greedy requests are

        def verify() -> None:
            judge(target.forward_ragged(ids, caches, counts, taps).last_hidden)
            _rollback(caches, context)

        return verify

    def _draft(self, context: int, requests: int, slots: int) -> Callable[[], None]:
        drafter = self._drafter
        assert drafter is not None
        assert self._draft_pool is not None
        caches, counts = self._caches(self._draft_pool, context, requests), [COMMITTED] * requests
        features = self._features(COMMITTED * requests)
        kept = drafter.info.draft_token_ids
        vocabulary = None if kept is None else kept.to(features.device)

        def draft() -> None:
            blocks = drafter.begin_each([0] * requests, caches, slots)
            previous = torch.zeros(requests, dtype=torch.long)
            if not isinstance(blocks, GreedyBlocks) or blocks.likeliest(previous, slots) is None:
                for _ in range(slots):
                    best = blocks.step(previous)[0].argmax(dim=-1)
                    previous = best if vocabulary is None else vocabulary[best]
            _rollback(caches, context)
            drafter.extend_ragged(features, caches, counts)
            _rollback(caches, context)

        return draft

    def _features(self, rows: int) -> torch.Tensor:
        """Real ones, of `rows` rows [rows, m * d]: one row repeated."""
        caches = self._caches(self._pool, 0, 1)
        output = self._target.forward_ragged(torch.zeros(1, dtype=torch.long), caches, [1], self._taps)
        return output.features.repeat(rows, 1)

    def _caches(self, pool: Pages, context: int, requests: int) -> list[PagedCache]:
        """Requests of `context` positions: pages that are full are shared, the others each one's own."""
        full, shared, caches = context // PAGE, self._shared(context), []
        for request in range(requests):
            table = PageTable(full + self._own)
            table.extend([(request * full + page) % shared for page in range(full)])
            first = self._first_own + request * self._own
            table.extend(range(first, first + self._own))
            cache = PagedCache(pool, table)
            cache.length = context
            caches.append(cache)
        return caches

    def _shared(self, context: int) -> int:
        """Pages that all contexts of this length have between them: at least one context, at most a full set."""
        full = context // PAGE
        return max(min(self._most * full, SHARED_POSITIONS // PAGE), full, 1)


def divided(tokens: int, requests: int) -> list[int]:
    """Rows of each request, as equal as can be: `tokens` in all."""
    return [tokens // requests + (i < tokens % requests) for i in range(requests)]


def _filled(pool: Pages) -> Pages:
    """As in use: memory that was never written is one and the same page to the system, and read too fast."""
    if isinstance(pool, PagePool):
        pool.data.fill_(FILLING)
    return pool


def _rollback(caches: Sequence[PagedCache], length: int) -> None:
    for cache in caches:
        cache.rollback(length)
