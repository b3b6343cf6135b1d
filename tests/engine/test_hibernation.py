"""Drafters are put away while they would not pay for long, and whoever goes without writes what it would have."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.hibernation import CLEAR, LEAST, LOOK, NAP, Hibernation
from dspark.engine.running import Running
from dspark.engine.strategy import Strategy
from dspark.nn.pages import PAGE
from dspark.scheduling import Batch, CostTable
from dspark.scheduling.registry import SchedulerConfig
from dspark.types import SamplingParams
from tests.engine.paged import PagedDrafter, PagedTarget, texts

V, GAMMA = 5, 3
BETWEEN = (LEAST + CLEAR) / 2


def some(requests: int, drafter: object = "any") -> list[Running]:
    chosen, text = SimpleNamespace(drafter=drafter), SimpleNamespace(length=10)
    return cast("list[Running]", [SimpleNamespace(key=key, request=text, chosen=chosen) for key in range(requests)])


class Promises:
    """Promises of the loads that are asked for."""

    def __init__(self, **by_load: float | None) -> None:
        self.by_load = {int(load[1:]): promise for load, promise in by_load.items()}
        self.asked: list[int] = []

        self.rechecked = 0

    def recheck(self) -> None:
        self.rechecked += 1

    def promise(self, batch: Batch) -> float | None:
        self.asked.append(batch.drafting)
        return self.by_load[batch.requests]


def states(hibernation: Hibernation, load: int, rounds: int) -> list[bool]:
    """Whether drafters are away in each of some rounds, and that changes are told."""
    away = []
    for _ in range(rounds):
        before = hibernation.asleep
        assert hibernation.look(some(load)) == (hibernation.asleep != before)
        away.append(hibernation.asleep)
    return away


@pytest.mark.parametrize(("promise", "sleeps"), [(LEAST - 0.01, True), (LEAST, False), (CLEAR, False), (None, False)])
def test_drafters_are_put_away_where_little_is_promised(promise: float | None, sleeps: bool) -> None:
    promises = Promises(_9=promise)
    assert states(Hibernation(promises, GAMMA), 9, 2 * LOOK - 1) == [False] * (LOOK - 1) + [sleeps] * LOOK
    assert promises.asked == [9]


def test_after_a_nap_who_enters_has_a_drafter_until_the_next_look() -> None:
    hibernation = Hibernation(promises := Promises(_9=LEAST - 0.01), GAMMA)
    states(hibernation, 9, LOOK)
    assert states(hibernation, 9, NAP + 2 * LOOK) == [True] * (NAP - 1) + [False] * 2 * LOOK + [True]
    assert (hibernation.rouses, promises.rechecked) == (False, 1)
    hibernation = Hibernation(promises := Promises(_9=LEAST - 0.01), GAMMA)
    states(hibernation, 9, LOOK + NAP)
    promises.by_load[9] = CLEAR
    states(hibernation, 9, 2 * LOOK)
    assert hibernation.rouses, "those who went without have theirs again"
    promises.by_load[9] = 1.0
    assert states(hibernation, 9, NAP) == [False] * (NAP - 1) + [True], "and keep them for as long"


def test_who_cannot_tell_changes_nothing() -> None:
    hibernation = Hibernation(promises := Promises(_32=1.0, _20=None, _12=None), GAMMA)
    states(hibernation, 32, LOOK)
    for load in (20, 12):
        assert states(hibernation, load, 3) == [True] * 3
    assert promises.asked == [32, 20, 12]
    states(hibernation, 12, NAP + 3 * LOOK)
    assert (hibernation.asleep, hibernation.rouses) == (False, False), "who sleeps does not read for a mere chance"


def test_a_load_that_falls_by_a_quarter_is_looked_at_at_once() -> None:
    hibernation = Hibernation(promises := Promises(_16=1.0, _13=1.0, _11=BETWEEN, _9=BETWEEN, _8=CLEAR), GAMMA)
    states(hibernation, 16, LOOK)
    for load, asleep in ((16, True), (13, True), (11, True), (9, True), (8, False)):
        assert states(hibernation, load, 3) == [asleep] * 3
        assert hibernation.rouses != asleep
    assert promises.asked == [16, 11, 8]
    promises.by_load[16] = 1.0
    assert states(hibernation, 16, NAP - 2) == [False] * (NAP - 3) + [True], "they stay for as long as they were away"


def test_a_load_that_rises_does_not_count_as_a_fall_later() -> None:
    hibernation = Hibernation(promises := Promises(_12=1.0), GAMMA)
    states(hibernation, 12, LOOK)
    for load in (40, 35, 12):
        states(hibernation, load, 3)
    assert promises.asked == [12]


@pytest.mark.parametrize("promise", [0.5, None])
def test_few_requests_keep_their_drafters_and_get_new_ones(promise: float | None) -> None:
    hibernation = Hibernation(Promises(_16=1.0, _8=promise), GAMMA)
    assert not any(states(hibernation, 8, 3 * LOOK))
    states(hibernation, 16, LOOK)
    assert hibernation.asleep
    assert not any(states(hibernation, 8, 3 * LOOK))
    assert not hibernation.rouses, "who sleeps does not read for a mere chance"


def test_without_drafters_or_requests_nobody_is_asked() -> None:
    hibernation = Hibernation(promises := Promises(_9=1.0), GAMMA)
    for _ in range(2 * LOOK):
        assert not hibernation.look([])
        assert not hibernation.look(some(9, None))
    assert promises.asked == []


class Scripted(Hibernation):
    """Changes as told: in each round, whether drafters are away, and whether sleepers are woken."""

    def __init__(self, script: Iterator[tuple[bool, bool]]) -> None:
        super().__init__(Promises(), GAMMA)
        self._script = script

    def look(self, seated: object) -> bool:
        before = self.asleep
        self.asleep, rouses = next(self._script, (False, True))
        self.rouses = rouses and not self.asleep
        return self.asleep != before


def engine(script: list[tuple[bool, bool]] | None, pages: int = 40, overlap: bool = False) -> EngineCore:
    target, scheduler = PagedTarget(V, 1), SchedulerConfig("fixed", park=False)
    options = EngineOptions(3, 32, 16, pages=pages, scheduler=scheduler, lookup=None, overlap=overlap)
    core = EngineCore(target, [] if script is None else [Strategy("drafts", PagedDrafter(target, GAMMA))], options)
    if script is not None:
        core._hibernation = Scripted(iter(script))
    return core


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.integers(1, 40)), max_size=6, min_size=1
    ),
    script=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60),
    pages=st.integers(6, 20),
    overlap=st.booleans(),
)
def test_whenever_drafters_are_put_away_texts_stay(
    prompts: list[tuple[list[int], int]], script: list[tuple[bool, bool]], pages: int, overlap: bool
) -> None:
    """Few tokens, so that prompts have prefixes in common: no page without a drafter's part may reach one."""
    core = engine([*script, *script], pages, overlap)
    expected = texts(engine(None), prompts)
    assert texts(core, prompts) == expected
    assert texts(core, prompts) == expected, "with what is cached by now"


def test_who_goes_without_costs_nothing_more_than_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    core, taps = engine([(False, True)] * 2 + [(True, False)] * 100), []
    forward = PagedTarget.forward_ragged

    def spied(target: PagedTarget, ids: object, caches: object, counts: object, of: object) -> object:
        taps.append(of)
        return forward(target, ids, caches, counts, of)  # type: ignore[arg-type]

    monkeypatch.setattr(PagedTarget, "forward_ragged", spied)
    first, second = (core.add([1, 2], SamplingParams(0.0, max_tokens=20, ignore_eos=True)) for _ in range(2))
    seen = []
    while not core.idle:
        core.step()
        assert core.last is not None
        seen.append((core.last.drafting, core.last.asleep))
    assert seen[:3] == [(0, 0), (2, 0), (0, 2)]
    assert set(seen[2:]) == {(0, 2)}
    assert (first, second) == (0, 1)
    assert [bool(of) for of in taps] == [True, True, *[False] * (len(taps) - 2)]


def test_prefixes_of_those_without_are_for_those_without() -> None:
    prompt, hits = [1, 2, 3] * 11, []
    core = engine([(True, False)] * 4 + [(False, False)] * 2 + [(True, False)] * 2)
    for _ in range(4):  # two steps each: awake is the third alone
        core.add(prompt, SamplingParams(0.0, max_tokens=1, ignore_eos=True))
        core.step()
        assert core.last is not None
        hits.append(core.last.hit_tokens)
        while not core.idle:
            core.step()
    assert hits == [0, 2 * PAGE, 0, 2 * PAGE]


def test_sleepers_with_much_to_come_are_woken_one_after_the_other() -> None:
    core = engine([(True, False)] * 3 + [(False, True)] * 100)
    for most in (40, 40, 8):  # the last one is near its end by then
        core.add([1] * 8, SamplingParams(0.0, max_tokens=most, ignore_eos=True))
    asleep = []
    while not core.idle:
        core.step()
        assert core.last is not None
        asleep.append(core.last.asleep)
    assert asleep[:6] == [0, 3, 3, 2, 1, 1]


def test_an_engine_that_can_never_win_lets_its_drafter_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real scheduler and its probes: drafting is slower even if all drafts are accepted."""
    monkeypatch.setattr("dspark.engine.hibernation.FEW", 0)
    target = PagedTarget(V, 1)
    dear = CostTable((1, 64), (0,), ((1.0, 2.0),), (1, 8), (9.0, 9.0))
    for hibernate in (True, False):
        options = EngineOptions(3, 32, 16, pages=40, lookup=None, hibernate=hibernate, follow_cost=False)
        core = EngineCore(target, [Strategy("drafts", PagedDrafter(target, GAMMA))], options, dear)
        core.add([1, 2], SamplingParams(0.0, max_tokens=120, ignore_eos=True))
        asleep = []
        while not core.idle:
            core.step()
            assert core.last is not None
            asleep.append(core.last.asleep)
        assert sum(asleep) == (len(asleep) - LOOK + 1 if hibernate else 0)
