"""Pages: what is written through a table is read back through it, and sizes are kept."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from dspark.errors import CapacityError, CompatibilityError
from dspark.nn.pages import PAGE, PagedCache, PageLayout, PagePool, PageTable, pages_for

LAYERS, KV_HEADS, WIDTH = 3, 2, 4


STATM = Path("/proc/self/statm")


def resident_bytes():
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def pool(pages=6, dtype=torch.float32):
    return PagePool(pages, LAYERS, KV_HEADS, WIDTH, dtype=dtype)


def table(*pages, most=8):
    made = PageTable(most)
    made.extend(pages)
    return made


def test_written_rows_are_read_at_their_positions_and_nothing_else_moves():
    memory, ids = pool(), torch.tensor([4, 1, 3])
    rows = torch.randn(20, 2 * KV_HEADS, WIDTH)
    positions = torch.arange(9, 29)
    memory.write(ids, 1, positions, rows)
    keys, values = memory.read(ids, 1)
    assert torch.equal(keys[:, 9:29], rows[:, :KV_HEADS].transpose(0, 1))
    assert torch.equal(values[:, 9:29], rows[:, KV_HEADS:].transpose(0, 1))
    assert memory.data.count_nonzero() == rows.numel()
    assert torch.equal(memory.data[4, 1, :, 9], rows[0])
    assert torch.equal(memory.data[1, 1, :, 0], rows[7])


def test_a_page_counts_the_bytes_of_all_layers():
    assert pool().page_bytes == LAYERS * 2 * KV_HEADS * PAGE * WIDTH * 4
    assert pool(dtype=torch.bfloat16).page_bytes == LAYERS * 2 * KV_HEADS * PAGE * WIDTH * 2


@pytest.mark.skipif(not STATM.is_file(), reason="the system does not say how much memory a process holds")
def test_a_pool_takes_memory_as_it_is_written_and_not_before():
    before = resident_bytes()
    memory = pool(2**28 // pool(1).page_bytes)
    assert resident_bytes() - before < 2**26
    memory.data[: len(memory.data) // 2].fill_(1)
    assert resident_bytes() - before > 2**26
    assert memory.data[-1].count_nonzero() == 0


def test_a_pool_begins_at_a_cache_line():
    addresses = [pool(pages, dtype).address for pages in (1, 2, 6, 2000) for dtype in (torch.float32, torch.bfloat16)]
    assert [address % 64 for address in addresses] == [0] * len(addresses)


def test_only_compiled_kernels_write_their_layouts():
    for layout in (PageLayout.VECTORS, PageLayout.TILES):
        memory = PagePool(1, LAYERS, KV_HEADS, WIDTH, layout)
        with pytest.raises(CompatibilityError, match=f"these pages hold {layout.value}"):
            memory.write(torch.tensor([0]), 0, torch.arange(1), torch.zeros(1, 2 * KV_HEADS, WIDTH))


def test_tiles_pad_heads_to_whole_tiles_of_bfloat16():
    memory = PagePool(1, LAYERS, KV_HEADS, WIDTH, PageLayout.TILES)
    assert memory.page_bytes == LAYERS * 2 * KV_HEADS * PAGE * 32 * 2
    assert memory.read(torch.tensor([0]), 0)[0].shape == (KV_HEADS, PAGE, WIDTH)


def test_pools_fit_whoever_makes_such_pools():
    assert pool(1).fits(pool(0))
    assert not pool(1).fits(pool(0, torch.bfloat16))
    assert not pool(1).fits(PagePool(0, LAYERS, KV_HEADS, WIDTH, PageLayout.VECTORS))
    assert not pool(1).fits(PagePool(0, LAYERS, KV_HEADS, WIDTH + 1))


def test_a_block_may_pass_the_limit_but_not_the_pages():
    cache = PagedCache(pool(), table(0, 1), limit=20)
    cache.length = 20
    assert cache.room_for(12) == 32
    with pytest.raises(CapacityError, match="a block of 13 does not fit behind 20 positions"):
        cache.room_for(13)


def test_something_else_than_a_pool_is_refused():
    with pytest.raises(CompatibilityError, match="found a object, expected pages"):
        PagedCache(object(), table(0))


@pytest.mark.parametrize(("positions", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_pages_for_positions(positions, pages):
    assert pages_for(positions) == pages


def test_a_table_grows_and_shrinks_where_it_stands():
    made = table(5, 2)
    address = made.address
    made.extend([9])
    made.keep(2)
    made.extend(np.array([7, 8]))
    assert made.ids[: made.count].tolist() == [5, 2, 7, 8]
    assert made.capacity == 4 * PAGE
    assert made.ids.ctypes.data == address
    assert made.ids.dtype == np.int32


def test_a_table_refuses_more_pages_than_it_has_room_for_and_fewer_than_it_holds():
    made = table(1, 2, most=3)
    with pytest.raises(CapacityError, match="a page table of 3 cannot take 2 pages behind 2"):
        made.extend([3, 4])
    with pytest.raises(CapacityError, match="cannot keep 3 pages: the table holds 2"):
        made.keep(3)
    assert made.count == 2


def test_a_cache_holds_what_its_pages_hold_even_if_they_come_later():
    pages = table(0)
    cache = PagedCache(pool(), pages)
    assert cache.reserve(PAGE) == PAGE
    with pytest.raises(CapacityError, match="17 more tokens do not fit: 0 of 16"):
        cache.reserve(PAGE + 1)
    pages.extend([3])
    assert cache.reserve(PAGE + 1) == PAGE + 1
    assert PagedCache(pool(), pages, limit=20).capacity == 20
    assert PagedCache(pool(), pages, limit=50).capacity == 2 * PAGE


def test_a_cache_rolls_back_to_what_it_holds():
    cache = PagedCache(pool(), table(0, 1))
    cache.length = 20
    cache.rollback(3)
    assert cache.length == 3
    for length in (-1, 4):
        with pytest.raises(CapacityError, match=f"roll back to {length} positions: the cache holds 3"):
            cache.rollback(length)
