import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.engine.lease import Lease
from dspark.engine.page_manager import PageManager
from dspark.errors import CapacityError, ConfigError
from dspark.nn.pages import PAGE

TEXT = list(range(100, 200))


def computed(manager: PageManager, tokens: list[int], salt: str = "") -> Lease:
    lease = manager.open(tokens, salt)
    assert manager.reserve(lease, len(tokens))
    manager.commit(lease, tokens[lease.length :])
    return lease


def pages(lease: Lease) -> list[int]:
    return lease.table.ids[: lease.table.count].tolist()


@pytest.mark.parametrize(("known", "asked", "hit"), [(8, 8, 4), (8, 9, 8), (7, 9, 4), (3, 9, 0), (8, 4, 0), (12, 9, 8)])
def test_hit_is_whole_pages_and_leaves_the_last_token_to_compute(known: int, asked: int, hit: int) -> None:
    manager = PageManager(8, page=4)
    manager.close(computed(manager, TEXT[:known]))
    lease = manager.open(TEXT[:asked])
    assert (lease.hit, lease.length, lease.shared, lease.table.count * 4) == (hit, hit, hit, hit)


def test_page_size_is_that_of_the_pools() -> None:
    manager = PageManager(8)
    lease = manager.open(TEXT[:5])
    assert manager.reserve(lease, PAGE + 1)
    assert lease.table.count == 2


def test_a_page_is_found_only_after_commit() -> None:
    manager = PageManager(8, page=4)
    first = manager.open(TEXT[:9])
    assert manager.reserve(first, 9)
    assert manager.open(TEXT[:9]).hit == 0
    manager.commit(first, TEXT[:7])
    assert manager.open(TEXT[:9]).hit == 4
    manager.commit(first, TEXT[7:8])
    second = manager.open(TEXT[:9])
    assert second.hit == 8
    assert pages(second) == pages(first)[:2]


def test_equal_tokens_behind_another_beginning_are_not_taken_for_equal() -> None:
    manager = PageManager(8, page=2)
    computed(manager, [1, 2, 7, 8])
    assert manager.open([3, 4, 7, 8, 9]).hit == 0
    assert manager.open([7, 8, 9]).hit == 0
    assert manager.open([1, 2, 7, 8, 9]).hit == 4


def test_salts_share_nothing() -> None:
    manager = PageManager(8, page=2)
    computed(manager, [1, 2, 3], "a")
    assert [manager.open([1, 2, 3], salt).hit for salt in ("a", "b", "")] == [2, 0, 0]


def test_a_full_memory_gives_nothing_rather_than_a_part() -> None:
    manager = PageManager(4, page=4)
    first, second = manager.open(TEXT), manager.open(TEXT)
    assert manager.reserve(first, 12)
    assert not manager.reserve(second, 5)
    assert (manager.free, second.table.count) == (1, 0)
    assert manager.reserve(second, 4)


def test_spare_pages_are_left_for_others() -> None:
    manager = PageManager(4, page=4)
    lease = manager.open(TEXT)
    assert not manager.reserve(lease, 8, spare=3)
    assert (manager.free, lease.table.count) == (4, 0)
    assert manager.reserve(lease, 8, spare=2)
    assert not manager.reserve(lease, 8, spare=3)


def test_reserving_less_than_is_held_takes_nothing() -> None:
    manager = PageManager(4, page=4)
    lease = manager.open(TEXT)
    assert manager.reserve(lease, 12)
    assert manager.reserve(lease, 1)
    assert lease.table.count == 3


def test_more_than_a_request_may_hold_is_refused() -> None:
    manager = PageManager(8, page=4, longest=2)
    with pytest.raises(CapacityError, match=r"9 positions do not fit into the 2 pages .*ask for fewer"):
        manager.reserve(manager.open(TEXT), 9)


def test_cached_pages_are_given_up_least_recently_used_first_and_deepest_first() -> None:
    manager = PageManager(4, page=2)
    old, young = [1, 2, 3, 4, 5], [6, 7, 8]
    for text in (old[:4], young[:2]):
        manager.close(computed(manager, text))
    assert (manager.free, manager.cached, manager.used) == (1, 3, 0)
    other = manager.open([9])
    assert manager.reserve(other, 4)
    assert (manager.open(old).hit, manager.open(young).hit) == (2, 2)


def test_a_hit_makes_pages_recent() -> None:
    manager = PageManager(2, page=2)
    for text in ([1, 2], [3, 4]):
        manager.close(computed(manager, text))
    manager.close(manager.open([1, 2, 0]))
    assert manager.reserve(manager.open([9]), 1)
    assert (manager.open([1, 2, 0]).hit, manager.open([3, 4, 0]).hit) == (2, 0)


def test_pages_in_use_are_never_given_up() -> None:
    manager = PageManager(3, page=2)
    manager.close(computed(manager, [1, 2, 3, 4]))
    reader = manager.open([1, 2, 3, 4, 5])
    assert not manager.reserve(manager.open([9]), 4)
    assert manager.reserve(reader, 5)
    assert (manager.free, manager.cached, manager.used) == (0, 0, 3)


def test_two_requests_that_computed_the_same_page_end_up_on_one() -> None:
    manager = PageManager(8, page=2)
    first, second = manager.open([1, 2, 3]), manager.open([1, 2, 4])
    assert manager.reserve(first, 3)
    assert manager.reserve(second, 3)
    array, address = second.table.ids, second.table.address
    manager.commit(first, [1, 2])
    manager.commit(second, [1, 2])
    assert pages(first)[0] == pages(second)[0]
    assert pages(first)[1] != pages(second)[1]
    assert manager.used == 3
    assert (array is second.table.ids, address) == (True, second.table.ids.ctypes.data)
    manager.close(first)
    manager.commit(second, [4, 5] if manager.reserve(second, 4) else [])
    assert manager.open([1, 2, 4, 5, 6]).hit == 4


def test_writing_into_a_shared_page_is_a_fault() -> None:
    manager = PageManager(8, page=4)
    lease = computed(manager, TEXT[:6])
    lease.check_write(4)
    with pytest.raises(AssertionError, match="position 3 lies in a shared page: the first 4 are only read"):
        lease.check_write(3)


def test_committing_more_than_has_pages_is_a_fault() -> None:
    manager = PageManager(8, page=4)
    lease = manager.open(TEXT)
    assert manager.reserve(lease, 3)
    with pytest.raises(AssertionError, match="5 positions are committed, and only 4 have pages"):
        manager.commit(lease, TEXT[:5])


def test_a_page_stays_in_use_until_its_last_reader_leaves() -> None:
    manager = PageManager(2, page=2)
    first = computed(manager, [1, 2])
    second, third = manager.open([1, 2, 3]), manager.open([1, 2, 3])
    manager.close(first)
    manager.close(second)
    assert (manager.used, manager.cached) == (1, 0)
    manager.close(third)
    assert (manager.used, manager.cached) == (0, 1)


def test_closing_twice_gives_back_once() -> None:
    manager = PageManager(4, page=2)
    lease = computed(manager, [1, 2, 3])
    manager.close(lease)
    manager.close(lease)
    assert (manager.free, manager.cached) == (3, 1)


def test_a_preempted_request_finds_what_it_had_computed() -> None:
    manager = PageManager(8, page=4)
    lease = computed(manager, TEXT[:10])
    manager.commit(lease, TEXT[10:12])
    manager.close(lease)
    assert manager.open(TEXT[:13]).hit == 12


def test_without_prefix_caching_nothing_is_kept() -> None:
    manager = PageManager(8, page=2, prefix_caching=False)
    lease = computed(manager, [1, 2, 3, 4, 5])
    assert manager.open([1, 2, 3, 4, 5]).hit == 0
    lease.check_write(0)
    manager.close(lease)
    assert (manager.free, manager.cached, manager.used) == (8, 0, 0)


def test_token_arrays_equal_lists() -> None:
    manager = PageManager(8, page=2)
    computed(manager, [1, 2, 3])
    assert manager.open(np.array([1, 2, 3])).hit == 2


@given(texts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=60), caching=st.booleans())
def test_bookkeeping_does_not_grow_with_time(texts: list[list[int]], caching: bool) -> None:
    manager = PageManager(6, page=2, prefix_caching=caching)
    for number, text in enumerate(texts):
        manager.close(computed(manager, text, salt=str(number)))
    index = manager._index
    assert len(index._pages) == len(index._keys) == manager.cached <= 6


@pytest.mark.parametrize("sizes", [(0, 16), (4, 0)])
def test_no_pages_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="expected 1 or more of both"):
        PageManager(*sizes)
