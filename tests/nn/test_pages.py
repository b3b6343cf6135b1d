"""Pages: what is written through a table is read back through it, and sizes are kept."""

import numpy as np
import pytest
import torch

from dspark.errors import CapacityError
from dspark.nn.pages import PAGE, PagedCache, PagePool, PageTable, pages_for

LAYERS, KV_HEADS, WIDTH = 3, 2, 4


def pool(pages=6, dtype=torch.float32):
    return PagePool(pages, LAYERS, KV_HEADS, WIDTH, dtype)


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
