import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.engine.memory_plan import Demand, MemoryPlan, plan_memory
from dspark.errors import CapacityError
from dspark.nn.pages import PAGE, PagePool

MIB = 2**20


def test_all_that_requests_can_need_if_memory_allows() -> None:
    plan = plan_memory(Demand(4, 100, MIB), 1000 * MIB)
    assert plan == MemoryPlan(4 * 7, MIB)
    assert (plan.bytes, plan.positions) == (28 * MIB, 448)


def test_otherwise_a_share_of_what_is_free() -> None:
    assert plan_memory(Demand(64, 100, MIB), 100 * MIB).pages == 50
    assert plan_memory(Demand(64, 100, MIB), 100 * MIB, share=0.2).pages == 20


def test_nothing_known_of_memory_or_no_pages_kept() -> None:
    assert plan_memory(Demand(4, 100, MIB), None).pages == 28
    assert plan_memory(Demand(4, 100, 0), 1).pages == 28


def test_too_little_memory_for_one_request_says_what_to_do() -> None:
    expected = (
        r"one request of 4096 positions take 256 MiB; found 100 MiB of free memory, of which pages may take 50%\. "
        r"Free memory, set pages=50 to serve requests of up to 800 positions, or set pages=256 to insist"
    )
    with pytest.raises(CapacityError, match=expected):
        plan_memory(Demand(4, 4096, MIB), 100 * MIB)


def test_less_than_a_page_of_memory_advises_no_pages() -> None:
    with pytest.raises(CapacityError, match=r"Free memory, or set pages=256 to insist"):
        plan_memory(Demand(4, 4096, MIB), MIB)


@given(st.integers(1, 64), st.integers(1, 5000), st.integers(1, 10**7), st.integers(0, 10**11))
def test_never_more_than_needed_or_allowed_never_less_than_one_request(
    requests: int, positions: int, page_bytes: int, available: int
) -> None:
    demand = Demand(requests, positions, page_bytes)
    try:
        plan = plan_memory(demand, available)
    except CapacityError:
        assert demand.longest * page_bytes > available // 2
        return
    assert demand.longest <= plan.pages <= requests * demand.longest
    assert plan.bytes <= available // 2
    assert plan.positions >= positions


def test_bytes_of_a_page_are_those_of_the_pools() -> None:
    target, drafter = (PagePool(2, layers, 3, 64, dtype=torch.bfloat16) for layers in (30, 3))
    assert target.page_bytes + drafter.page_bytes == (30 + 3) * 2 * 3 * PAGE * 64 * 2
