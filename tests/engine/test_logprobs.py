"""Log-probabilities are those of a plain forward, wherever in a round a token was emitted."""

import math
from dataclasses import replace

import pytest
import torch

from dspark.core.block_verification import BlockVerification
from dspark.core.hashed_law import HashedLaw
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.drafters.fake import FakeDrafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.logprobs import token_logprobs
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.result import GenerationResult
from dspark.engine.strategy import Strategy
from dspark.scheduling.registry import SchedulerConfig
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams, TokenLogprob

V, GAMMA, PROMPT = 7, 3, (2, 0, 2, 5, 2)
LAW = HashedLaw(V, 3, order=2)
TARGET = FakeTarget(LAW, V, order=2, max_positions=200, eos_token_ids=(6,))
DRAFTER = FakeDrafter(HashedLaw(V, 3, order=1), V, GAMMA, 8)
HARD = {"temperature": 0.6, "top_k": 4, "top_p": 0.9, "repetition_penalty": 1.4, "presence_penalty": 0.2}


def logs(*values: float) -> torch.Tensor:
    return torch.tensor(values).log()


def test_values_are_those_of_log_softmax() -> None:
    logits = 5 * torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    expected = logits.double().log_softmax(dim=-1)
    for i, entry in enumerate(token_logprobs(logits, [3, 999, 0, 500], 5)):
        assert entry.token_id == [3, 999, 0, 500][i]
        assert entry.logprob == pytest.approx(float(expected[i, entry.token_id]), abs=1e-5)
        best = expected[i].topk(5)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_ties_go_by_id_and_masked_tokens_have_no_probability() -> None:
    logits = torch.stack((logs(0.2, 0.3, 0.2, 0.3), logs(0.5, 0.5, 0.0, 0.0)))
    first, second = token_logprobs(logits, [2, 3], 3)
    assert [token for token, _ in first.top] == [1, 3, 0]
    assert first.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert second.logprob == -math.inf
    assert second.top[2] == (2, -math.inf)
    assert token_logprobs(logits, [0, 0], 4)[0].top[3] == (2, pytest.approx(math.log(0.2), abs=1e-6))


def check(result: GenerationResult, top: int) -> None:
    """Every entry is what a plain forward over prompt and text gives at its position, raw."""
    assert len(result.logprobs) == len(result.token_ids) > 0
    text = [*PROMPT, *result.token_ids]
    for position, entry in enumerate(result.logprobs, start=len(PROMPT)):
        expected = LAW(text[:position]).double().log_softmax(dim=-1)
        assert entry.token_id == text[position]
        assert entry.logprob == pytest.approx(float(expected[text[position]]), abs=1e-5)
        assert [token for token, _ in entry.top] == expected.topk(top).indices.tolist()


def with_logprobs(top: int, **changes: object) -> SamplingParams:
    return replace(SamplingParams(max_tokens=60, ignore_eos=True, logprobs=top), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [TokenRejection(), BlockVerification()], ids=["token", "block"])
@pytest.mark.parametrize("lookup", [None, PromptLookup(2, match=2)], ids=["drafts", "copies"])
@pytest.mark.parametrize("changes", [{}, {"temperature": 1.0}, HARD], ids=["greedy", "sampled", "processed"])
def test_the_reference_loop_tells_them(
    rule: RejectionRule, lookup: PromptLookup | None, changes: dict[str, float]
) -> None:
    loop = ReferenceLoop(TARGET, DRAFTER, DecodeOptions(rule=rule, lookup=lookup))
    result = loop.generate(PROMPT, with_logprobs(3, **changes))
    assert result.metrics["accepted_tokens"] > 0  # drafts among them
    check(result, 3)


def test_nothing_changes_in_the_text_and_nothing_is_told_unasked() -> None:
    loop = ReferenceLoop(TARGET, DRAFTER)
    asked = with_logprobs(0, temperature=1.0)
    silent = loop.generate(PROMPT, replace(asked, logprobs=None))
    assert silent.token_ids == loop.generate(PROMPT, asked).token_ids
    assert silent.logprobs == ()


def test_they_end_with_the_text_inside_a_round() -> None:
    loop = ReferenceLoop(TARGET, DRAFTER)
    cut = 0
    for seed in range(30):
        result = loop.generate(PROMPT, with_logprobs(1, temperature=1.0, seed=seed, ignore_eos=False))
        check(result, 1)
        metrics = result.metrics
        cut += len(result.token_ids) < 1 + metrics["accepted_tokens"] + metrics["rounds"]
    assert cut > 0


def test_commits_carry_their_own() -> None:
    generation = ReferenceLoop(TARGET, DRAFTER).start(PROMPT, with_logprobs(2, temperature=1.0))
    told: list[TokenLogprob] = []
    for commit in generation:
        assert tuple(entry.token_id for entry in commit.logprobs) == commit.token_ids
        told += commit.logprobs
    assert tuple(told) == generation.finish().logprobs


def test_the_engine_tells_each_request_its_own() -> None:
    options = EngineOptions(4, 64, 16, 16, scheduler=SchedulerConfig("fixed", park=False))
    core = EngineCore(TARGET, [Strategy("drafts", DRAFTER, None)], options)
    wanted = [with_logprobs(2), with_logprobs(0, temperature=1.0), replace(with_logprobs(0), logprobs=None)]
    wanted.append(with_logprobs(2, **HARD))
    numbers = [core.add(PROMPT, params) for params in wanted]
    results: dict[int, GenerationResult] = {}
    told: dict[int, list[TokenLogprob]] = {number: [] for number in numbers}
    while not core.idle:
        for event in core.step():
            told[event.request_id] += event.logprobs
            if event.result is not None:
                results[event.request_id] = event.result
    for number, params in zip(numbers, wanted, strict=True):
        assert tuple(told[number]) == results[number].logprobs
        if params.logprobs is None:
            assert results[number].logprobs == ()
        else:
            check(results[number], params.logprobs)
