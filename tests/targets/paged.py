"""Requests whose caches share a pool, their pages interleaved and out of order."""

from random import Random

from dspark.nn.pages import PagedCache, PageTable, pages_for


def paged_caches(model, capacities, seed=0):
    """Caches of a target or a drafter, each with room for its capacity, in one pool."""
    needed = [pages_for(capacity) for capacity in capacities]
    pool = model.new_pages(sum(needed) + 2)
    ids = list(range(pool.pages))
    Random(seed).shuffle(ids)
    return [PagedCache(pool, _table(ids, pages)) for pages in needed]


def _table(free, count):
    table = PageTable(count + 1)
    table.extend([free.pop() for _ in range(count)])
    return table
