"""The embedded models: shared and scarce pages and chunks change neither greedy text nor what is accepted."""

import pytest

from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.models import Models, open_models
from dspark.engine.result import GenerationResult
from dspark.engine.strategy import Strategy
from dspark.nn.pages import pages_for
from dspark.scheduling.registry import SchedulerConfig
from dspark.types import SamplingParams

STEM = " Answer in one short paragraph, name your sources, and say when you are not sure of them. Be polite. " * 2
PROMPTS = ("Why is the sky blue?" + STEM, "How do bees make honey?" + STEM, "Why is the sky blue?" + STEM + "Go on.")
GREEDY = SamplingParams(max_tokens=18, ignore_eos=True)
FIXED = SchedulerConfig("fixed", park=False)


@pytest.fixture(scope="module")
def models(model_wheel: str) -> Models:
    return open_models(model_wheel)


def served(models: Models, **options: int | bool) -> tuple[list[GenerationResult], int, int]:
    """Answers to all prompts, positions found in cached pages, requests preempted."""
    chosen = EngineOptions(scheduler=FIXED, lookup=None, **{"max_requests": 2, "pages": 40} | options)
    core = EngineCore(models.target, [Strategy("drafts", models.drafter)], chosen)
    numbers = [core.add(models.codec.encode(prompt), GREEDY) for prompt in PROMPTS]
    results: dict[int, GenerationResult] = {}
    hits = preempted = 0
    while not core.idle:
        results |= {event.request_id: event.result for event in core.step() if event.result is not None}
        assert core.last is not None
        hits, preempted = hits + core.last.hit_tokens, preempted + core.last.preempted
    return [results[number] for number in numbers], hits, preempted


@pytest.mark.slow
def test_texts_and_acceptance_are_those_of_one_request_at_a_time_without_sharing(models: Models) -> None:
    expected, found, preempted = served(models, max_requests=1, prefix_caching=False)
    assert found == preempted == 0
    assert sum(result.tally.metrics()["accepted_tokens"] for result in expected) > 0
    longest = max(len(models.codec.encode(prompt)) for prompt in PROMPTS[:2])
    tight = 2 * pages_for(longest + 1 + 7) + 1
    arms = [served(models, prefill_chunk=9), served(models, pages=tight)]
    for results, _, _ in arms:
        assert [result.token_ids for result in results] == [result.token_ids for result in expected]
        assert [result.tally.metrics() for result in results] == [result.tally.metrics() for result in expected]
    assert arms[-1][1] > 0
