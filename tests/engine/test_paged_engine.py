"""The engine on models that remember only what their pages hold: hits, chunks, preemption, and whose page was whose."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.events import StepStats
from dspark.engine.reference import ReferenceLoop
from dspark.engine.result import GenerationResult
from dspark.engine.strategy import Strategy
from dspark.nn.pages import PAGE
from dspark.scheduling.registry import SchedulerConfig
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams
from tests.engine.paged import PagedDrafter, PagedTarget

V, GAMMA = 5, 3
STEM = [(3 * i + i // 7) % V for i in range(70)]


def engine(**options: object) -> EngineCore:
    target = PagedTarget(V, 1)
    chosen = {"max_requests": 4, "max_batched_tokens": 64, "prefill_chunk": 16, "pages": 40} | options
    plain = SchedulerConfig("fixed", park=False)
    return EngineCore(
        target, [Strategy("drafts", PagedDrafter(target, GAMMA))], EngineOptions(scheduler=plain, lookup=None, **chosen)
    )


def alone(prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    """Greedy: the same law without pages and without a drafter. Sampled: a new engine that shares nothing."""
    if params.temperature == 0:
        return ReferenceLoop(FakeTarget(PagedTarget(V, 1).law, V, 160, 160)).generate(prompt, params).token_ids
    core = engine(max_requests=1, prefix_caching=False)
    number = core.add(prompt, params)
    return run(core)[0][number].token_ids


def run(core: EngineCore) -> tuple[dict[int, GenerationResult], list[StepStats]]:
    results, steps = {}, []
    while not core.idle:
        assert len(steps) < 5_000, "the engine does not come to an end"
        results |= {event.request_id: event.result for event in core.step() if event.result is not None}
        assert core.last is not None
        assert core.last.accepted == core.last.verified, "a draft fell: the drafter's pages hold another context"
        steps.append(core.last)
    assert core.memory.manager.used == 0
    return results, steps


def greedy(tokens: int = 12) -> SamplingParams:
    return SamplingParams(max_tokens=tokens)


def test_a_prefix_is_read_once_whoever_held_the_pages_before() -> None:
    core = engine(pages=12)
    for prompt in (STEM[:60], [4] * 60, STEM[:60], [*STEM[:50], 1, 2]):
        number = core.add(prompt, greedy())
        results, steps = run(core)
        assert results[number].token_ids == alone(prompt, greedy())
    assert sum(step.prefill_tokens for step in steps) == 52 - 3 * PAGE
    assert sum(step.hit_tokens for step in steps) == 3 * PAGE


def test_a_prompt_that_is_known_whole_still_computes_its_last_token() -> None:
    core = engine()
    for expected in (2 * PAGE, PAGE):
        number = core.add(STEM[: 2 * PAGE], greedy())
        results, steps = run(core)
        assert results[number].token_ids == alone(STEM[: 2 * PAGE], greedy())
        assert sum(step.prefill_tokens for step in steps) == expected


def test_an_answer_is_found_again_in_the_next_turn() -> None:
    core = engine()
    first = core.add(STEM[:20], greedy(30))
    answer = list(run(core)[0][first].token_ids)
    second = core.add([*STEM[:20], *answer, 1, 2], greedy())
    results, steps = run(core)
    assert results[second].token_ids == alone([*STEM[:20], *answer, 1, 2], greedy())
    assert sum(step.prefill_tokens for step in steps) <= 52 - 2 * PAGE


def test_equal_prompts_at_once_end_on_the_same_pages() -> None:
    core = engine(max_batched_tokens=256, prefill_chunk=64)
    numbers = [core.add(STEM[:49], SamplingParams(1.0, seed=seed, max_tokens=5)) for seed in range(4)]
    core.step()
    assert core.last is not None
    assert (core.last.prefill_tokens, core.memory.manager.used) == (4 * 49, 3 + 4), "three shared, one each of its own"
    results, _ = run(core)
    for seed, number in enumerate(numbers):
        assert results[number].token_ids == alone(STEM[:49], SamplingParams(1.0, seed=seed, max_tokens=5))


def test_a_seat_has_pages_for_the_whole_prompt_and_the_round_behind_it() -> None:
    core = engine(prefill_chunk=4)
    core.add(STEM[: 2 * PAGE - 3], greedy())
    core.step()
    assert core.last is not None
    assert (core.last.prefill_tokens, core.last.pages_used) == (4, 3)
    run(core)


def test_without_prefix_caching_every_prompt_is_read_whole() -> None:
    core = engine(prefix_caching=False)
    for _ in range(2):
        core.add(STEM[:40], greedy())
        assert sum(step.prefill_tokens for step in run(core)[1]) == 40


def test_salts_and_strategies_do_not_share() -> None:
    core = engine()
    for options, expected in (({}, 40), ({"salt": "a"}, 40), ({"strategy": "none"}, 40), ({"salt": "a"}, 8), ({}, 8)):
        core.add(STEM[:40], greedy(), **options)
        assert sum(step.prefill_tokens for step in run(core)[1]) == expected


def test_preempted_requests_go_on_where_they_were() -> None:
    core = engine(pages=11, max_requests=3)
    prompts = [[i] * 20 for i in range(3)]
    numbers = [core.add(prompt, greedy(80)) for prompt in prompts]
    results, steps = run(core)
    assert sum(step.preempted for step in steps) > 0
    for number, prompt in zip(numbers, prompts, strict=True):
        assert results[number].token_ids == alone(prompt, greedy(80))


PARAMS = st.builds(
    SamplingParams, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 3), max_tokens=st.integers(1, 30)
)
PROMPTS = st.builds(
    lambda stem, own: STEM[:stem] + own, st.integers(0, 70), st.lists(st.integers(0, V - 1), min_size=1, max_size=6)
)


@settings(max_examples=10)
@given(
    requests=st.lists(st.tuples(PROMPTS, PARAMS, st.integers(0, 12)), min_size=1, max_size=7),
    seats=st.integers(1, 5),
    chunk=st.integers(3, 40),
    pages=st.integers(9, 24),
    switches=st.tuples(st.booleans(), st.booleans()),
)
def test_texts_and_acceptance_do_not_depend_on_pages(
    requests: list[tuple[list[int], SamplingParams, int]],
    seats: int,
    chunk: int,
    pages: int,
    switches: tuple[bool, bool],
) -> None:
    caching, overlap = switches
    core = engine(pages=pages, max_requests=seats, prefill_chunk=chunk, prefix_caching=caching, overlap=overlap)
    coming = sorted(range(len(requests)), key=lambda i: requests[i][2])
    numbers: dict[int, int] = {}
    results: dict[int, GenerationResult] = {}
    step = 0
    while coming or not core.idle:
        while coming and requests[coming[0]][2] <= step:
            index = coming.pop(0)
            numbers[core.add(requests[index][0], requests[index][1])] = index
        results |= {event.request_id: event.result for event in core.step() if event.result is not None}
        assert core.last is not None
        assert core.last.accepted == core.last.verified
        step += 1
        assert step < 5_000
    for number, index in numbers.items():
        assert results[number].token_ids == alone(*requests[index][:2])


@pytest.mark.parametrize("length", [PAGE - 1, PAGE, PAGE + 1])
def test_pages_of_a_prompt_that_ends_at_a_page(length: int) -> None:
    core = engine()
    numbers = [core.add(STEM[:length], greedy(PAGE + 2)) for _ in range(3)]
    results, _ = run(core)
    assert {results[number].token_ids for number in numbers} == {alone(STEM[:length], greedy(PAGE + 2))}


def test_names_and_salts_that_read_alike_when_joined_share_nothing() -> None:
    """The drafter that has not read the page would find another context there, and its drafts would fall."""
    target = PagedTarget(V, 1)
    names = ("a", "a/b", "a b")
    options = EngineOptions(4, 64, 16, 40, scheduler=SchedulerConfig("fixed", park=False), lookup=None)
    core = EngineCore(target, [Strategy(name, PagedDrafter(target, GAMMA)) for name in names], options)
    for name, salt, hits in (
        ("a", "b/x", 0),
        ("a/b", "x", 0),
        ("a", "b x", 0),
        ("a b", "x", 0),
        ("a", "b/x", 32),
    ):
        core.add(STEM[:40], greedy(), strategy=name, salt=salt)
        assert sum(step.hit_tokens for step in run(core)[1]) == hits
