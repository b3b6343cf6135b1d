"""Drafters that are shown several rounds together know what those know that are shown each at once."""

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.strategy import Strategy
from dspark.nn.pages import PAGE, PagedCache
from dspark.scheduling.registry import SchedulerConfig
from dspark.scheduling.round import Batch, Plan
from dspark.types import SamplingParams
from tests.engine.paged import PagedDrafter, PagedTarget, rest, texts

V, GAMMA = 5, 3


@pytest.fixture(autouse=True, scope="module")
def few_owed() -> Iterator[None]:
    """Debts of a few positions are shown, or these short texts would end before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dspark.engine.runner.OWED", 8)
        yield


def engine(pages: int = 40, plain: bool = False) -> tuple[PagedDrafter, EngineCore]:
    target = PagedTarget(V, 1)
    drafter = PagedDrafter(target, GAMMA)
    options = EngineOptions(3, 32, 16, pages=pages, scheduler=SchedulerConfig("fixed", park=False), lookup=None)
    return drafter, EngineCore(target, [] if plain else [Strategy("drafts", drafter)], options)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, V - 1), min_size=1, max_size=40), st.integers(1, 40)), max_size=6, min_size=1
    ),
    rounds=st.sets(st.integers(0, 60)),
    pages=st.integers(6, 20),
    aborted=st.none() | st.integers(0, 5),
)
def test_whenever_it_rests_drafters_know_all_when_they_draft(
    prompts: list[tuple[list[int], int]], rounds: set[int], pages: int, aborted: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _, core = engine(pages)
        rest(core, rounds, patch)
        found = texts(core, prompts, aborted)
    expected = texts(engine(plain=True)[1], prompts)
    for request, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one == (other[: len(one)] if request == aborted else other)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, GAMMA), min_size=40, max_size=40), st.integers(8, 20))
def test_texts_stay_whatever_the_width_of_blocks(widths: list[int], pages: int) -> None:
    """Round by round another width, and now and then (0) no drafts."""
    prompts = [([1, 2], 20), ([3], 30), ([2] * 20, 10)]
    with pytest.MonkeyPatch.context() as patch:
        _, core = engine(pages)
        numbers = itertools.count()

        def plan(batch: Batch) -> Plan:
            number = next(numbers)
            width = widths[number % len(widths)]
            return Plan(batch.narrowed(max(width, 1)), number, drafts=width > 0 and batch.room > 0, full=True)

        patch.setattr(core._runner._planner.scheduler, "plan", plan)
        found = texts(core, prompts)
    assert found == texts(engine(plain=True)[1], prompts)


def test_rounds_of_a_rest_are_shown_together(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, core = engine()
    rest(core, range(100), monkeypatch)
    shown: list[list[int]] = []
    extend = drafter.extend_ragged
    monkeypatch.setattr(
        drafter,
        "extend_ragged",
        lambda rows, caches, counts: (shown.append(list(counts)), extend(rows, caches, counts)),
    )
    texts(core, [([1, 2], 24), ([3], 24)])
    assert shown == [[2, 1], *[[4, 4]] * 5]


def test_who_ends_leaves_its_prompt_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read beside rounds that rest, and its answer ends before so much is owed that all would be shown."""
    monkeypatch.setattr("dspark.engine.runner.OWED", 10**6)
    _, core = engine()
    rest(core, range(100), monkeypatch)
    core.add([4], SamplingParams(0.0, max_tokens=30, ignore_eos=True))
    core.step()
    for hits in (0, PAGE):
        core.add([1, 2, 3] * 8, SamplingParams(0.0, max_tokens=2, ignore_eos=True))
        core.step()
        assert core.last is not None
        assert core.last.hit_tokens == hits
        while not core.last.finished:
            core.step()


def test_a_request_that_gave_its_pages_back_is_owed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The younger is sent away in debt, as the older needs a page for its last round, and comes back at once."""
    _, core = engine(pages=5)
    rest(core, range(20), monkeypatch)
    sent_away: list[int] = []
    unseat = core.memory.unseat
    monkeypatch.setattr(core.memory, "unseat", lambda running: (sent_away.append(running.key), unseat(running)))
    prompts = [([1] * 30, 17), ([2] * 5, 40)]
    found = texts(core, prompts)
    assert sent_away == [1, 0, 1]
    assert found == texts(engine(plain=True)[1], prompts)


@pytest.mark.parametrize("after", range(1, 12))
@pytest.mark.parametrize("rounds", [range(30), range(9)], ids=["resting on", "drafting again"])
def test_drafters_that_fail_at_their_second_request_leave_no_debt_half_paid(
    after: int, rounds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, core = engine()
    rest(core, rounds, monkeypatch)
    prompts = [([1, 2], 30), ([3], 30), ([2] * 20, 30)]
    told: dict[int, list[int]] = {
        core.add(p, SamplingParams(0.0, max_tokens=n, ignore_eos=True)): [] for p, n in prompts[:2]
    }

    def steps(count: int) -> None:
        for _ in range(count):
            for event in core.step():
                told[event.request_id] += event.token_ids

    steps(after)
    told[
        core.add(prompts[2][0], SamplingParams(0.0, max_tokens=30, ignore_eos=True))
    ] = []  # read while others are in debt
    extend = drafter.extend_ragged

    def broken(rows: Tensor, caches: Sequence[PagedCache], counts: Sequence[int]) -> None:
        extend(rows[: counts[0]], caches[:1], counts[:1])
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(drafter, "extend_ragged", broken)
        with pytest.raises(MemoryError):
            steps(10)
    while not core.idle:
        steps(1)
        assert core.last is not None
        assert core.last.accepted == core.last.verified, "a draft fell: the drafter's pages hold another context"
    assert list(told.values()) == texts(engine(plain=True)[1], prompts)
