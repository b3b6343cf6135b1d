"""The K/V memory of the engine: allocated once, lent to requests page by page, for target and drafters on one table."""

from collections.abc import Iterable, Sequence

from dspark.engine.engine_options import EngineOptions
from dspark.engine.lease import Lease
from dspark.engine.memory_plan import Demand, plan_memory
from dspark.engine.page_manager import PageManager
from dspark.engine.running import Running
from dspark.engine.strategy import Strategy
from dspark.engine.tiers import Padding
from dspark.errors import CapacityError
from dspark.nn.main_memory import free_bytes
from dspark.nn.pages import PAGE, PagedCache, PagePool, PageTable, pages_for
from dspark.types import BatchDrafter, Cache, Drafter, Pages, RaggedTarget, Target


class EngineMemory:
    """Seats requests: gives them pages, caches that view them, and what others have computed of their prompt.

    Models that keep no pages get a cache of their own per request; pages are counted for them all the same, so that
    memory stays planned. Prefixes are shared only where target and drafter both keep pages.

    Raises:
        CapacityError: memory is too small for one request of full length, and `options.pages` does not insist.
    """

    def __init__(self, target: Target, strategies: Iterable[Strategy], options: EngineOptions) -> None:
        self._target = target
        known = list(strategies)
        drafters = {id(one.drafter): one.drafter for one in known if one.drafter is not None}
        self._longest = target.info.max_positions + max((one.gamma for one in known), default=0)
        keepers = [model for model in (target, *drafters.values()) if isinstance(model, RaggedTarget | BatchDrafter)]
        pages = options.pages or _planned(keepers, options.max_requests, self._longest)
        self.manager = PageManager(pages, PAGE, options.prefix_caching, pages_for(self._longest))
        spare = 0 if options.tiers is None else pages_for(options.tiers.padding)
        self._pool = target.new_pages(pages + spare) if isinstance(target, RaggedTarget) else None
        self.padding = self._padding(options, range(pages, pages + spare))
        self._draft_pools: dict[int, Pages] = {
            name: drafter.new_pages(pages) for name, drafter in drafters.items() if isinstance(drafter, BatchDrafter)
        }

    def _padding(self, options: EngineOptions, spare: range) -> Padding | None:
        """What rounds forwards up, if they shall be and can be: pages `spare` are lent to no request."""
        if options.tiers is None or self._pool is None:
            return None
        table = PageTable(len(spare))
        table.extend(spare)
        return Padding(options.tiers, PagedCache(self._pool, table))

    def claim(self) -> None:
        """Take all that was planned from the system now, before the first request; else pages take it as they are
        written."""
        for pool in (self._pool, *self._draft_pools.values()):
            if isinstance(pool, PagePool):
                pool.data.zero_()

    def check_fits(self, running: Running) -> None:
        """Raises CapacityError for a request that all pages together could not hold."""
        positions = len(running.request.prompt_ids) + running.request.limit + running.drafts
        if pages_for(positions) > self.manager.pages:
            raise CapacityError(
                f"the request may need {positions} positions and the engine has {self.manager.pages * PAGE}: ask for "
                "fewer tokens, or give the engine more pages"
            )

    def seat(self, running: Running, spare: int) -> bool:
        """Pages for what it must read and a round behind; False, with nothing held, if fewer than `spare` were left.

        Nothing is held either if a model has no room for a cache of its own, and raises.
        """
        shared = self._pool is not None and self._shares(running.strategy.drafter)
        lease = self.manager.open(running.tokens(0, running.goal), running.salt if shared else f"request {running.key}")
        try:
            if self.manager.reserve(lease, running.goal + 1 + running.drafts, spare):
                self._seat_on(lease, running)
        except BaseException:
            running.unseat()
            self.manager.close(lease)
            raise
        if not running.seated:
            self.manager.close(lease)
        return running.seated

    def _seat_on(self, lease: Lease, running: Running) -> None:
        target_cache = self._target_cache(running, lease.table)
        draft_cache = self._draft_cache(running, lease.table)
        if lease.hit:
            target_cache.length = lease.hit
            if draft_cache is not None:
                draft_cache.length = lease.hit
        running.seat(lease, target_cache, draft_cache)

    def unseat(self, running: Running) -> None:
        """Take its pages back."""
        if running.lease is not None:
            self.manager.close(running.lease)
        running.unseat()

    def reserve(self, running: Running, positions: int) -> bool:
        """Pages for its positions below `positions`; False if there are too few."""
        assert running.lease is not None
        running.lease.check_write(running.computed)
        return self.manager.reserve(running.lease, positions)

    def commit(self, running: Running) -> None:
        """What both of its caches hold now is computed for good."""
        lease, draft_cache = running.lease, running.draft_cache
        assert lease is not None
        if lease.salt == running.salt:  # else it shares nothing, or lost its drafter on the way
            end = running.computed if draft_cache is None else min(running.computed, draft_cache.length)
            self.manager.commit(lease, running.tokens(lease.length, end))

    def _shares(self, drafter: Drafter | None) -> bool:
        return drafter is None or id(drafter) in self._draft_pools

    def _target_cache(self, running: Running, table: PageTable) -> Cache:
        if self._pool is None:
            return self._target.new_cache(running.request.capacity)
        return PagedCache(self._pool, table)

    def _draft_cache(self, running: Running, table: PageTable) -> Cache | None:
        drafter = running.strategy.drafter
        if drafter is None:
            return None
        pool = self._draft_pools.get(id(drafter))
        return drafter.new_cache(running.request.capacity) if pool is None else PagedCache(pool, table)


def _planned(keepers: Sequence[RaggedTarget | BatchDrafter], requests: int, longest: int) -> int:
    """Pages in each of the pools of `keepers`, whose sizes one page tells."""
    pools = [pool for pool in (model.new_pages(1) for model in keepers) if isinstance(pool, PagePool)]
    demand = Demand(requests, longest, sum(pool.page_bytes for pool in pools))
    return plan_memory(demand, free_bytes(pools[0].data.device) if pools else None).pages
