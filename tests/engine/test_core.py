"""The engine on fake models: what requests get is what the reference loop gives each alone."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from dspark.core.hashed_law import HashedLaw
from dspark.drafters.fake import FakeDrafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.events import StepStats
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.result import GenerationResult
from dspark.engine.strategy import Strategy
from dspark.errors import CapacityError, ConfigError
from dspark.scheduling.cost_table import CostTable
from dspark.scheduling.registry import SchedulerConfig
from dspark.scheduling.round import Batch, Plan
from dspark.targets.fake import FakeTarget
from dspark.types import Cache, DraftBlock, SamplingParams, TargetOutput

V, ORDER, GAMMA = 6, 2, 3
ALL = SchedulerConfig("fixed", park=False)


def models(seed: int = 1, order: int = 1, **info: Any) -> tuple[FakeTarget, FakeDrafter]:
    """The drafter's law is the target's, one token shorter, so that some drafts survive."""
    target = FakeTarget(HashedLaw(V, seed, ORDER), V, ORDER, **info)
    drafter = FakeDrafter(
        HashedLaw(V, seed, order), V, GAMMA, 2 * (ORDER + 2), confidence=lambda tokens: 0.7 * tokens[-1] - 1
    )
    return target, drafter


def engine(options: EngineOptions | None = None, lookup: PromptLookup | None = None, **info: Any) -> EngineCore:
    target, drafter = models(**info)
    strategies = [Strategy("lookup", None, PromptLookup(2, 2)), Strategy("drafts", drafter, lookup)]
    return EngineCore(target, strategies, options or EngineOptions(scheduler=ALL))


def alone(
    prompt: Sequence[int], params: SamplingParams, lookup: PromptLookup | None = None, **info: Any
) -> GenerationResult:
    target, drafter = models(**info)
    return ReferenceLoop(target, drafter, DecodeOptions(lookup=lookup)).generate(prompt, params)


def run(core: EngineCore, most: int = 10_000) -> tuple[dict[int, GenerationResult], list[StepStats]]:
    """Step until idle; the results by request, whose ends were told as events, and what each step said of itself."""
    results: dict[int, GenerationResult] = {}
    streamed: dict[int, list[int]] = {}
    steps: list[StepStats] = []
    while not core.idle:
        assert len(steps) < most, "the engine does not come to an end"
        for event in core.step():
            streamed.setdefault(event.request_id, []).extend(event.token_ids)
            if event.result is not None:
                results[event.request_id] = event.result
                told = streamed[event.request_id]
                assert list(event.result.token_ids)[len(event.result.token_ids) - len(told) :] == told
        assert core.last is not None
        steps.append(core.last)
    assert core.memory.manager.used == 0
    return results, steps


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 5),
    max_tokens=st.integers(1, 14),
)
PROMPTS = st.lists(st.integers(0, V - 2), min_size=1, max_size=40)
REQUESTS = st.lists(st.tuples(PROMPTS, PARAMS, st.integers(0, 8)), min_size=1, max_size=9)


@settings(max_examples=30)
@given(
    requests=REQUESTS,
    slots=st.integers(1, 9),
    chunk=st.integers(1, 20),
    pages=st.integers(4, 16),
    copies=st.booleans(),
    overlap=st.booleans(),
)
def test_everybody_gets_what_the_reference_loop_gives_him_alone(
    requests: list[tuple[list[int], SamplingParams, int]],
    slots: int,
    chunk: int,
    pages: int,
    copies: bool,
    overlap: bool,
) -> None:
    """Sampled text too: whoever else is there, in whatever order, with few pages or many (chunks, preemption)."""
    lookup = PromptLookup(2, 2) if copies else None
    options = EngineOptions(slots, 64, chunk, pages, scheduler=ALL, overlap=overlap)
    core = engine(options, lookup, eos_token_ids=(5,))
    arrivals = sorted(range(len(requests)), key=lambda i: requests[i][2])
    numbers: dict[int, int] = {}
    results: dict[int, GenerationResult] = {}
    for step in range(10_000):
        while arrivals and requests[arrivals[0]][2] <= step:
            index = arrivals.pop(0)
            numbers[core.add(requests[index][0], requests[index][1])] = index
        results |= {event.request_id: event.result for event in core.step() if event.result is not None}
        if not arrivals and core.idle:
            break
    assert len(results) == len(requests)
    for number, result in results.items():
        prompt, params, _ = requests[numbers[number]]
        expected = alone(prompt, params, lookup, eos_token_ids=(5,))
        assert result.token_ids == expected.token_ids
        assert result.finish_reason == expected.finish_reason
        assert result.tally.metrics() == expected.tally.metrics()
    assert core.memory.manager.used == 0


COST = CostTable.from_steps_per_second({1: 100.0, 4: 95.0, 8: 60.0, 16: 30.0, 64: 8.0})
TRIMMING = [
    SchedulerConfig("threshold", threshold=0.3),
    SchedulerConfig("prefix"),
    SchedulerConfig("lagged"),
    SchedulerConfig("fixed", length=2, park=False),
]


def trimming(config: SchedulerConfig, overlap: bool = False, seed: int = 1, **options: Any) -> EngineCore:
    target, drafter = models(seed)
    chosen = EngineOptions(16, 64, 8, scheduler=config, overlap=overlap, lookup=None, follow_cost=False, **options)
    return EngineCore(target, [Strategy("drafts", drafter)], chosen, COST)


@pytest.mark.parametrize("overlap", [False, True], ids=["reference", "overlapped"])
@pytest.mark.parametrize("config", TRIMMING, ids=lambda config: config.name)
@settings(max_examples=6)
@given(seed=st.integers(0, 30), prompts=st.lists(PROMPTS, min_size=1, max_size=12))
def test_whatever_is_trimmed_greedy_text_is_the_targets_own(
    config: SchedulerConfig, overlap: bool, seed: int, prompts: list[list[int]]
) -> None:
    core = trimming(config, overlap, seed)
    numbers = [core.add(prompt, SamplingParams(max_tokens=12)) for prompt in prompts]
    results, steps = run(core)
    for number, prompt in zip(numbers, prompts, strict=True):
        plain = ReferenceLoop(FakeTarget(HashedLaw(V, seed, ORDER), V, ORDER))
        assert results[number].token_ids == plain.generate(prompt, SamplingParams(max_tokens=12)).token_ids
    tallies = [result.tally.metrics() for result in results.values()]
    for of_steps, of_requests in (("verified", "verified_tokens"), ("drafted", "drafted_tokens")):
        assert sum(getattr(step, of_steps) for step in steps) == sum(tally[of_requests] for tally in tallies)


@pytest.mark.parametrize("overlap", [False, True], ids=["reference", "overlapped"])
@pytest.mark.parametrize("config", TRIMMING, ids=lambda config: config.name)
def test_whatever_is_trimmed_sampled_text_follows_the_targets_law(config: SchedulerConfig, overlap: bool) -> None:
    """1,000 answers of three tokens in full batches against the exact law; level 1e-4 a case, fixed seeds."""
    target, _ = models()
    core = trimming(config, overlap)
    numbers = [core.add([0, 3], SamplingParams(1.0, seed=seed, max_tokens=3)) for seed in range(1_000)]
    results, steps = run(core)
    assert any(0 < step.verified < step.drafted for step in steps), "nothing was trimmed, so nothing was shown"
    laws = {
        tokens: target.law(tokens).double().softmax(-1).tolist() for tokens in itertools.product(range(V), repeat=2)
    }
    expected = {
        (a, b, c): 1_000 * laws[0, 3][a] * laws[3, a][b] * laws[a, b][c]
        for a, b, c in itertools.product(range(V), repeat=3)
    }
    found = Counter(results[number].token_ids for number in numbers)
    common = [text for text in expected if expected[text] >= 5]
    rare = set(expected) - set(common)
    observed = [found[text] for text in common] + [sum(found[text] for text in rare)]
    law = [expected[text] for text in common] + [sum(expected[text] for text in rare)]
    assert chisquare(observed, law).pvalue > 1e-4


def test_the_forward_holds_the_scheduled_tokens_and_no_others() -> None:
    target, drafter = models()
    rows: list[int] = []
    forward = target.forward

    def counted(token_ids: Tensor, *rest: Any) -> TargetOutput:
        rows.append(len(token_ids))
        return forward(token_ids, *rest)

    target.forward = counted  # type: ignore[method-assign]
    core = EngineCore(target, [Strategy("drafts", drafter)], EngineOptions(4, 32, 4, scheduler=TRIMMING[1]), COST)
    for i in range(7):
        core.add([i % V] * (3 * i + 1), SamplingParams(1.0, seed=i, max_tokens=10))
    while not core.idle:
        rows.clear()
        core.step()
        assert core.last is not None
        assert sum(rows) == core.last.requests + core.last.verified + core.last.prefill_tokens <= 32


def test_a_scheduler_that_rests_sees_all_the_room_that_it_left_to_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    core = engine(EngineOptions(4, 32, 13, scheduler=ALL), max_positions=300)
    rooms: list[int] = []
    rests = {2, 3}

    def plan(batch: Batch) -> Plan:
        rooms.append(batch.room)
        return Plan(batch, len(rooms), drafts=len(rooms) not in rests, full=True)

    monkeypatch.setattr(core._runner._planner.scheduler, "plan", plan)
    for _ in range(2):
        core.add([1], SamplingParams(0.0, max_tokens=60, ignore_eos=True))
    core.step()
    for _ in range(2):
        core.add([2] * 200, SamplingParams(0.0, max_tokens=60, ignore_eos=True))
    steps = []
    for _ in range(5):
        core.step()
        assert core.last is not None
        steps.append((core.last.prefill_tokens, core.last.verified))
    assert steps == [(24, 6), (24, 0), (26, 0), (26, 4), (24, 6)]
    assert rooms == [6] * 5


def test_every_request_chooses_where_its_drafts_come_from() -> None:
    core = engine()
    prompt, params = [0, 3, 1, 4, 0, 3, 1, 4, 0, 3], SamplingParams(max_tokens=12)
    numbers = {name: core.add(prompt, params, strategy=name) for name in ("none", "lookup", "drafts", "auto")}
    results, _ = run(core)
    assert len({result.token_ids for result in results.values()}) == 1
    drafted = {name: results[number].tally.metrics()["drafted_tokens"] for name, number in numbers.items()}
    assert drafted["none"] == 0
    assert drafted["lookup"] != drafted["drafts"] > 0
    assert drafted["auto"] == drafted["drafts"]
    assert results[numbers["lookup"]].lookup_rounds > 0
    with pytest.raises(ConfigError, match="none, lookup, drafts"):
        core.add(prompt, params, strategy="eagle7")


def test_an_aborted_request_and_one_whose_time_is_up_end_with_what_they_have() -> None:
    now = [0.0]
    target, drafter = models()
    core = EngineCore(target, [Strategy("drafts", drafter)], EngineOptions(2, scheduler=ALL), clock=lambda: now[0])
    running, late, waiting, other = (
        core.add([i], SamplingParams(max_tokens=30, ignore_eos=True), deadline=5.0 if i == 1 else None)
        for i in range(4)
    )
    core.step(), core.step()
    core.abort(running), core.abort(waiting), core.abort(99)
    now[0] = 5.0
    results, _ = run(core)
    assert {number: result.finish_reason for number, result in results.items()} == {
        running: "abort", late: "deadline", waiting: "abort", other: "length",
    }  # fmt: skip
    assert len(results[running].token_ids) > 0 == len(results[waiting].token_ids)
    core.abort(running)
    assert core.idle


def test_requests_that_cannot_be_are_refused_and_leave_nothing_behind() -> None:
    core = engine(EngineOptions(2, pages=3, scheduler=ALL))
    with pytest.raises(CapacityError, match="48"):
        core.add([0] * 40, SamplingParams(max_tokens=20))
    with pytest.raises(ConfigError):
        core.add([], SamplingParams())
    assert core.idle
    with pytest.raises(ConfigError, match="max_batched_tokens is 8"):
        EngineOptions(max_requests=16, max_batched_tokens=8)
    with pytest.raises(ConfigError, match="strategy 'dspork' is unknown"):
        engine(EngineOptions(strategy="dspork"))


def test_the_cost_table_follows_the_times_of_real_rounds() -> None:
    """A clock on which every call takes ten times as long as the table says of whole rounds."""
    target, drafter = models()
    ticks = itertools.count()
    core = EngineCore(
        target,
        [Strategy("drafts", drafter)],
        EngineOptions(4, scheduler=SchedulerConfig("lagged", park=False), lookup=None),
        CostTable((1, 16), (0,), ((0.1, 0.2),), (1, 4), (0.1, 0.1)),
        clock=lambda: float(next(ticks)),
    )
    for i in range(4):
        core.add([i], SamplingParams(max_tokens=50, ignore_eos=True))
    _, steps = run(core)
    expected = [step.predicted_seconds for step in steps if step.predicted_seconds is not None]
    assert expected[0] < 0.5
    assert expected[-1] > 2 * expected[0]


def test_copies_that_fail_do_not_stop_a_drafter_that_is_always_right() -> None:
    """Copies are no drafts of the drafter: neither its yield nor its confidences are judged by them."""
    target = FakeTarget(HashedLaw(V, 1, 1), V, ORDER)
    drafter = FakeDrafter(HashedLaw(V, 1, 1), V, GAMMA, 2 * (ORDER + 2), confidence=lambda tokens: 3.0)
    options = EngineOptions(1, scheduler=SchedulerConfig("lagged"), follow_cost=False)
    core = EngineCore(target, [Strategy("drafts", drafter, PromptLookup(2, 2))], options, COST)
    number = core.add([0, 3, 1, 4, 0, 3], SamplingParams(1.0, seed=5, max_tokens=50, ignore_eos=True))
    results, steps = run(core)
    copied = results[number].lookup_rounds
    assert copied > 3
    assert sum(step.drafting for step in steps) == results[number].tally.rounds - copied


def test_what_a_block_looks_like_does_not_depend_on_who_else_drafts() -> None:
    """Blocks are whole even where the context ends, because their slots see each other."""
    target, drafter = models(max_positions=24)
    begun: list[int | None] = []
    begin = drafter.begin

    def watched(anchor: int, cache: Cache, gamma: int | None = None) -> DraftBlock:
        begun.append(gamma)
        return begin(anchor, cache, gamma)

    drafter.begin = watched  # type: ignore[method-assign]
    core = EngineCore(target, [Strategy("drafts", drafter)], EngineOptions(3, scheduler=ALL))
    for prompt in ([0] * 19, [1], [2] * 5):
        core.add(prompt, SamplingParams(1.0, seed=2, max_tokens=60, ignore_eos=True))
    run(core)
    assert set(begun) == {GAMMA}


def test_the_scheduler_hears_of_prompts_and_the_cost_table_of_narrow_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = models()
    table = CostTable((1, 16), (0,), ((1.0, 1.1),), (1, 4), (0.1, 0.1))
    core = EngineCore(target, [Strategy("drafts", drafter)], EngineOptions(scheduler=ALL), table)
    beside, shares = list[int](), list[float]()

    def plan(batch: Batch) -> Plan:
        beside.append(batch.beside)
        return Plan(batch.narrowed(2), len(beside), full=True)

    monkeypatch.setattr(core._runner._planner.scheduler, "plan", plan)
    monkeypatch.setattr(core._cost, "observe", lambda timing: shares.append(timing.share))
    for prompt in ([1, 2], [1, 2, 3, 4]):
        core.add(prompt, SamplingParams(0.0, max_tokens=9, ignore_eos=True))
        core.step()
    run(core)
    assert beside[0] == 4
    assert not any(beside[1:])
    assert set(shares) == {0.5}
