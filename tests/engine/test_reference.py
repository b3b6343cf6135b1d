"""The reference loop on fake models: what it shows the drafter, what it commits, where it ends."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark.core.admission import DraftPrefix
from dspark.core.block_verification import BlockVerification
from dspark.core.hashed_law import HashedLaw
from dspark.core.penalties import TokenHistory, penalised
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.drafters.fake import FakeBlock, FakeContext, FakeDrafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.result import GenerationResult
from dspark.errors import CapacityError, CompatibilityError, ConfigError, SamplingError
from dspark.targets.fake import FakeCache, FakeTarget
from dspark.types import Cache, SamplingParams, TargetOutput

V, ORDER, PROMPT = 6, 2, (0, 3, 1, 4)
RULES: list[RejectionRule] = [TokenRejection(), BlockVerification()]
GREEDY = SamplingParams(max_tokens=20)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=20, seed=7)


class SpyTarget(FakeTarget):
    """Remembers the sizes of its forwards and its caches."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.forwards: list[int] = []
        self.caches: list[FakeCache] = []

    def new_cache(self, capacity: int) -> FakeCache:
        self.caches.append(super().new_cache(capacity))
        return self.caches[-1]

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        self.forwards.append(len(token_ids))
        return super().forward(token_ids, cache, taps)


class SpyDrafter(FakeDrafter):
    """Remembers what it knew at the beginning of each block."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.blocks: list[tuple[int, Tensor, int | None]] = []

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> FakeBlock:
        assert isinstance(cache, FakeContext)
        self.blocks.append((anchor, cache.features.clone(), gamma))
        return super().begin(anchor, cache, gamma)


def target(seed: int = 1, order: int = ORDER, **options: Any) -> SpyTarget:
    # The state spans ORDER tokens in any case, so that features keep their width.
    return SpyTarget(HashedLaw(V, seed, order), V, ORDER, **options)


def drafter(seed: int = 1, order: int | None = 2, gamma: int = 3, **options: Any) -> SpyDrafter:
    return SpyDrafter(HashedLaw(V, seed, order), V, gamma, 2 * (ORDER + 2), **options)


def decode(
    params: SamplingParams = GREEDY, gamma: int = 3, prompt: Sequence[int] = PROMPT, **kw: Any
) -> GenerationResult:
    """With the drafter whose law is the target's but one token shorter, so that some drafts survive."""
    return ReferenceLoop(target(), drafter(order=1, gamma=gamma), DecodeOptions(**kw)).generate(prompt, params)


def perfect(gamma: int, **options: Any) -> ReferenceLoop:
    """A target that looks at one token only, and a drafter that equals it."""
    return ReferenceLoop(target(order=1, **options), drafter(order=1, gamma=gamma))


def plain_greedy(
    length: int, prompt: Sequence[int] = PROMPT, params: SamplingParams = GREEDY, seed: int = 1, order: int = ORDER
) -> list[int]:
    """The target's own greedy continuation, without any loop."""
    tokens = list(prompt)
    for _ in range(length):
        history = TokenHistory(prompt, tokens[len(prompt) :])
        tokens.append(int(penalised(HashedLaw(V, seed, order)(tokens), params, history).argmax()))
    return tokens[len(prompt) :]


# Greedy equality.


@settings(max_examples=40)
@given(
    seed=st.integers(0, 50),
    draft_seed=st.integers(0, 50),
    order=st.sampled_from([1, 2, None]),
    gamma=st.integers(0, 5),
    rule=st.sampled_from(RULES),
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=5),
)
def test_greedy_text_is_the_targets_own(
    seed: int, draft_seed: int, order: int | None, gamma: int, rule: RejectionRule, prompt: list[int]
) -> None:
    options = DecodeOptions(max_draft_tokens=gamma, rule=rule)
    loop = ReferenceLoop(target(seed), drafter(draft_seed, order, gamma=5), options)
    assert list(loop.generate(prompt, GREEDY).token_ids) == plain_greedy(20, prompt, seed=seed)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 50),
    gamma=st.integers(0, 3),
    rule=st.sampled_from(RULES),
    lookup=st.builds(PromptLookup, st.integers(1, 4), st.integers(1, 3)),
    penalty=st.sampled_from([1.0, 1.3]),
)
def test_greedy_text_with_copied_drafts_is_the_targets_own(
    seed: int, gamma: int, rule: RejectionRule, lookup: PromptLookup, penalty: float
) -> None:
    params = SamplingParams(max_tokens=20, repetition_penalty=penalty)
    loop = ReferenceLoop(target(seed), drafter(seed, 1), DecodeOptions(gamma, rule, lookup=lookup))
    assert list(loop.generate(PROMPT, params).token_ids) == plain_greedy(20, seed=seed, params=params)


def test_copies_alone_follow_a_loop() -> None:
    """A greedy target that looks at one token goes in circles, which copies guess without a drafter."""
    result = ReferenceLoop(target(order=1), options=DecodeOptions(lookup=PromptLookup(4, match=2))).generate(
        PROMPT, SamplingParams(max_tokens=60)
    )
    assert result.tally.tau > 3
    assert 0 < result.metrics["lookup_rounds"] < result.tally.rounds


def test_the_drafter_keeps_up_while_drafts_are_copied() -> None:
    spy = drafter(order=1)
    loop = ReferenceLoop(target(), spy, DecodeOptions(lookup=PromptLookup(2, match=2)))
    result = loop.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=80, seed=7))
    assert 0 < result.lookup_rounds < result.tally.rounds
    tokens, places = (*PROMPT, *result.token_ids), [len(features) for _, features, _ in spy.blocks]
    assert [tokens[place] for place in places] == [anchor for anchor, _, _ in spy.blocks]
    assert places == sorted(set(places))
    assert max(b - a for a, b in itertools.pairwise(places)) > 4  # more than a round of its own commits


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_greedy_text_with_penalties_is_the_targets_own(gamma: int) -> None:
    params = SamplingParams(max_tokens=20, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
    expected = plain_greedy(20, params=params)
    assert expected != plain_greedy(20)
    assert list(decode(params, gamma=4, max_draft_tokens=gamma).token_ids) == expected


def test_perfect_drafter_is_accepted_whole() -> None:
    result = perfect(gamma=4).generate(PROMPT, GREEDY)
    assert result.metrics["tau"] == 5
    assert result.metrics["acceptance_by_position"] == [1, 1, 1, 1]


def test_drafter_sees_penalties_too() -> None:
    params = SamplingParams(max_tokens=20, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
    result = perfect(gamma=4).generate(PROMPT, params)
    assert result.metrics["tau"] == 5
    assert result.token_ids != perfect(gamma=4).generate(PROMPT, GREEDY).token_ids


def test_pruned_draft_vocabulary() -> None:
    known = torch.tensor([5, 0, 2])
    full = HashedLaw(V, 1, ORDER)
    for params in (GREEDY, SamplingParams(max_tokens=20, presence_penalty=0.1), SAMPLED):
        pruned = SpyDrafter(lambda tokens: full(tokens)[known], V, 3, 2 * (ORDER + 2), draft_token_ids=known)
        result = ReferenceLoop(target(), pruned).generate(PROMPT, params)
        assert result.metrics["accepted_tokens"] > 0
        if params.temperature == 0:
            assert list(result.token_ids) == plain_greedy(20, params=params)


# What the drafter is shown.


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_drafter_sees_each_committed_position_once_and_never_the_anchor(params: SamplingParams, chunk: int) -> None:
    model, spy = target(), drafter(order=1)
    result = ReferenceLoop(model, spy, DecodeOptions(prefill_chunk=chunk)).generate(PROMPT, params)
    text = [*PROMPT, *result.token_ids]
    assert len(spy.blocks) == result.metrics["rounds"]
    for anchor, features, _ in spy.blocks:
        length = len(features)
        assert anchor == text[length]
        rows = features.reshape(length, 2, ORDER + 2)
        assert (rows[:, :, 0] == torch.tensor([0.0, 2.0])).all()
        assert rows[:, 0, 1].tolist() == list(range(length))
        assert rows[:, 0, -1].tolist() == text[:length]
        assert rows[:, 0, -2].tolist() == [-1, *text[: length - 1]]


def test_prompt_is_read_in_chunks() -> None:
    model = target()
    result = ReferenceLoop(model, drafter(), DecodeOptions(prefill_chunk=3)).generate((*PROMPT, 2, 2, 5), GREEDY)
    assert model.forwards[:3] == [3, 3, 1]
    assert model.forwards[3:] == [4] * result.tally.rounds
    assert result.token_ids == decode(prompt=(*PROMPT, 2, 2, 5)).token_ids


def test_rejected_drafts_leave_no_trace_in_the_target() -> None:
    model = target(max_positions=100)
    generation = ReferenceLoop(model, drafter(order=1)).start(PROMPT, SAMPLED)
    text = list(PROMPT)
    for commit in generation:
        text += commit.token_ids
        # The last round may end in the middle of a block: the cache then knows accepted tokens beyond the text.
        assert model.caches[0].tokens[: len(text) - 1] == text[:-1]
        assert model.caches[0].length == len(text) - 1 or len(text) == len(PROMPT) + 20


# Random numbers.


def test_same_seed_same_text_whatever_ran_before() -> None:
    loop = ReferenceLoop(target(), drafter(order=1))
    first = loop.generate(PROMPT, SAMPLED)
    loop.generate((1, 2), SamplingParams(temperature=1.0, seed=3, max_tokens=5))
    again = loop.generate(PROMPT, SAMPLED)
    assert again.token_ids == first.token_ids
    texts = {loop.generate(PROMPT, SamplingParams(1.0, seed=seed, max_tokens=20)).token_ids for seed in range(10)}
    assert len(texts) == 10


def test_without_drafts_the_loop_is_plain_decoding_with_the_same_random_numbers() -> None:
    plain = ReferenceLoop(target()).generate(PROMPT, SAMPLED)
    assert decode(SAMPLED, max_draft_tokens=0).token_ids == plain.token_ids
    assert decode(SAMPLED, admits=lambda prefix: False).token_ids == plain.token_ids
    assert plain.metrics["tau"] == plain.metrics["tokens_per_target_forward"] == 1


@pytest.mark.parametrize("rule", RULES, ids=["token", "block"])
def test_top_k_one_is_greedy_at_any_temperature(rule: RejectionRule) -> None:
    params = SamplingParams(temperature=1.7, top_k=1, max_tokens=20)
    assert list(decode(params, rule=rule).token_ids) == plain_greedy(20)


def test_greedy_drafts_do_not_depend_on_the_seed() -> None:
    spies = [drafter(order=1) for _ in range(2)]
    firsts = []
    for seed, spy in enumerate(spies):
        admitted: list[DraftPrefix] = []
        options = DecodeOptions(greedy_drafts=True, admits=lambda prefix, seen=admitted: not seen.append(prefix))  # type: ignore[misc]
        ReferenceLoop(target(), spy, options).generate(PROMPT, SamplingParams(1.0, seed=seed, max_tokens=20))
        law = HashedLaw(V, 1, 1)
        for prefix in admitted:
            for before, token in itertools.pairwise((prefix.anchor, *prefix.tokens)):
                assert token == int(law((before,)).argmax())
        firsts.append(len(admitted))
    assert min(firsts) > 0


# Where the text ends.


def test_end_token_inside_a_block_drops_the_rest() -> None:
    text = plain_greedy(20)
    end = text[6]
    first = text.index(end)
    for gamma in range(6):
        result = ReferenceLoop(target(eos_token_ids=(end,)), drafter(gamma=6), DecodeOptions(gamma)).generate(
            PROMPT, GREEDY
        )
        assert list(result.token_ids) == text[: first + 1]
        assert result.finish_reason == "stop"


def test_accepted_end_token_is_a_round_without_bonus() -> None:
    def count_up(tokens: Sequence[int]) -> Tensor:
        return torch.eye(V)[(tokens[-1] + 1) % V]

    model = FakeTarget(count_up, V, ORDER, eos_token_ids=(2,))
    result = ReferenceLoop(model, FakeDrafter(count_up, V, 5, 2 * (ORDER + 2))).generate((0, 4), GREEDY)
    assert result.token_ids == (5, 0, 1, 2)
    assert result.metrics["tau"] == result.metrics["accepted_tokens"] == 3
    assert result.metrics["drafted_tokens"] == 5
    assert result.metrics["acceptance_by_position"] == [1, 1, 1]


def test_first_token_may_end_the_text() -> None:
    result = ReferenceLoop(target(eos_token_ids=tuple(range(V))), drafter()).generate(PROMPT, GREEDY)
    assert (len(result.token_ids), result.finish_reason, result.metrics["rounds"]) == (1, "stop", 0)
    assert result.metrics["tokens_per_second"] == 0


def test_end_tokens_can_be_ignored_and_added() -> None:
    text = plain_greedy(20)
    loop = ReferenceLoop(target(eos_token_ids=(text[2],)), drafter())
    assert list(loop.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True)).token_ids) == text
    added = SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=(text[1],))
    assert list(loop.generate(PROMPT, added).token_ids) == text[: text.index(text[1]) + 1]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_limit_is_met_exactly_and_does_not_clip_tau(limit: int) -> None:
    result = perfect(gamma=9).generate(PROMPT, SamplingParams(max_tokens=limit))
    assert list(result.token_ids) == plain_greedy(limit, order=1)
    assert result.finish_reason == "length"
    assert result.metrics["tau"] == (0 if limit == 1 else 10)
    assert result.metrics["tokens_per_target_forward"] == limit - 1


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_context_limit_ends_the_text(params: SamplingParams) -> None:
    model = target(max_positions=10)
    result = ReferenceLoop(model, drafter(order=1, gamma=4)).generate(PROMPT, params)
    assert (len(result.token_ids), result.finish_reason) == (6, "length")
    assert model.caches[0].capacity == 10


def test_stop_string_across_rounds() -> None:
    class Names:
        def push(self, token: int) -> str:
            return f"<{token}>"

        def flush(self) -> str:
            return "."

    text = plain_greedy(20)
    stop = f"{text[7]}><{text[8]}"
    where = next(i for i in range(20) if text[i : i + 2] == text[7:9])
    loop = ReferenceLoop(target(), drafter(order=1))
    generation = loop.start(PROMPT, SamplingParams(max_tokens=20, stop=(stop,)), Names())
    shown = "".join(commit.text for commit in generation)
    result = generation.finish()
    assert shown == result.text == "".join(f"<{token}>" for token in text[:where]) + "<"
    assert list(result.token_ids) == text[: where + 2]
    assert result.finish_reason == "stop"
    assert loop.generate(PROMPT, SamplingParams(max_tokens=2), Names()).text == f"<{text[0]}><{text[1]}>."


# Admission.


def test_policy_sees_only_what_came_before() -> None:
    seen: list[DraftPrefix] = []

    def admits(prefix: DraftPrefix) -> bool:
        seen.append(prefix)
        return len(prefix.tokens) < 2

    confident = drafter(order=1, confidence=lambda tokens: float(sum(tokens)))
    result = ReferenceLoop(target(), confident, DecodeOptions(admits=admits)).generate(PROMPT, SAMPLED)
    assert [len(prefix.tokens) for prefix in seen] == [0, 1, 2] * result.tally.rounds
    for prefix in seen:
        known = (prefix.anchor, *prefix.tokens)
        assert prefix.confidences == tuple(float(sum(known[: i + 1])) for i in range(len(known)))
    assert result.metrics["verified_tokens"] == 2 * result.tally.rounds


def test_confidences_are_none_without_a_head() -> None:
    seen: list[DraftPrefix] = []
    decode(admits=lambda prefix: not seen.append(prefix))  # type: ignore[func-returns-value]
    assert {confidence for prefix in seen for confidence in prefix.confidences} == {None}


# Masks and refusals.


def masked_after(tokens: set[int], seed: int = 1) -> Callable[[Sequence[int]], Tensor]:
    law = HashedLaw(V, seed, 1)
    return lambda text: torch.full((V,), -torch.inf) if text and text[-1] in tokens else law(text)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_fully_masked_draft_row_ends_the_block(params: SamplingParams) -> None:
    spy = SpyDrafter(masked_after({0, 1, 2}), V, 3, 2 * (ORDER + 2))
    result = ReferenceLoop(target(), spy).generate(PROMPT, params)
    assert len(result.token_ids) == 20
    assert 0 < result.metrics["drafted_tokens"] < 3 * result.tally.rounds


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_fully_masked_target_row_is_an_error(params: SamplingParams) -> None:
    model = FakeTarget(masked_after(set(range(V))), V, ORDER)
    with pytest.raises(SamplingError, match="every token is masked"):
        ReferenceLoop(model, drafter()).generate(PROMPT, params)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_dead_end_behind_a_rejected_draft_is_harmless(params: SamplingParams) -> None:
    # The drafter loves token 5, which the target never says and after which it knows nothing to say.
    law = HashedLaw(V, 1, 1, impossible=(5,))
    model = FakeTarget(lambda text: masked_after({5})(text) if text[-1] == 5 else law(text), V, ORDER)
    fond = drafter()
    fond.law = lambda tokens: torch.tensor([0.0, 0, 0, 0, 0, 9])
    result = ReferenceLoop(model, fond).generate(PROMPT, params)
    assert 5 not in result.token_ids
    assert len(result.token_ids) == 20


def test_broken_draft_logits_are_an_error() -> None:
    for params in (GREEDY, SAMPLED):
        broken = drafter()
        broken.law = lambda tokens: torch.full((V,), torch.nan)
        with pytest.raises(SamplingError, match="NaN"):
            ReferenceLoop(target(), broken).generate(PROMPT, params)


def test_prompt_must_fit_and_be_of_this_vocabulary() -> None:
    loop = ReferenceLoop(target(max_positions=4), drafter())
    with pytest.raises(CapacityError, match=r"4 tokens and fake has 4 positions.*shorten the prompt to 3 tokens"):
        loop.start(PROMPT, GREEDY)
    assert len(loop.generate(PROMPT[:3], GREEDY).token_ids) == 1
    with pytest.raises(ConfigError, match="no tokens"):
        loop.start((), GREEDY)
    with pytest.raises(ConfigError, match="token id 6, outside the 6 ids of fake"):
        loop.start((1, 6), GREEDY)


def test_parameters_and_options_are_checked() -> None:
    loop = ReferenceLoop(target(), drafter())
    with pytest.raises(ConfigError, match="temperature is -1"):
        loop.start(PROMPT, SamplingParams(temperature=-1))
    with pytest.raises(ConfigError, match="stop_token_ids"):
        loop.start(PROMPT, SamplingParams(stop_token_ids=(V,)))
    with pytest.raises(ConfigError, match="max_draft_tokens is -1"):
        DecodeOptions(max_draft_tokens=-1)
    with pytest.raises(ConfigError, match="prefill_chunk is 0"):
        DecodeOptions(prefill_chunk=0)


def test_foreign_drafter_is_refused() -> None:
    with pytest.raises(CompatibilityError, match="vocabulary of 5 tokens, target fake has 6"):
        ReferenceLoop(target(), FakeDrafter(HashedLaw(5), 5))


def test_cap_above_gamma_is_gamma() -> None:
    assert decode(gamma=3, max_draft_tokens=50).metrics["drafted_tokens"] % 3 == 0


# Time.


def test_every_second_inside_the_loop_is_accounted_for_and_none_outside() -> None:
    ticks = itertools.count()
    outside = 0

    def clock() -> float:
        return float(next(ticks))

    loop = ReferenceLoop(target(), drafter(order=1), clock=clock)
    generation = loop.start(PROMPT, SAMPLED)
    before = next(ticks)
    for _ in generation:
        outside += sum(1 for _ in range(5) if next(ticks) >= 0)
    result = generation.finish()
    times, total = result.times, next(ticks) - before - 1
    # Each round restarts the clock once: one tick a round, and one for the prompt, lies between the laps.
    assert times.prefill + times.decode == total - outside - (result.tally.rounds + 1)
    assert min(times.prefill, times.draft, times.verify, times.schedule) > 0
    assert result.metrics["tokens_per_second"] == pytest.approx(19 / times.decode)


def test_metrics_hold_the_agreed_keys() -> None:
    assert set(decode().metrics) == {
        *("tau", "tokens_per_target_forward", "rounds", "drafted_tokens", "verified_tokens", "accepted_tokens"),
        *("acceptance_by_position", "conditional_acceptance_by_position", "output_tokens", "tokens_per_second"),
        *("prefill_seconds", "draft_seconds", "verify_seconds", "schedule_seconds", "lookup_rounds"),
    }


def test_stream_and_whole_agree() -> None:
    loop = ReferenceLoop(target(), drafter(order=1))
    generation = loop.start(PROMPT, SAMPLED)
    streamed = [token for commit in generation for token in commit.token_ids]
    assert tuple(streamed) == generation.finish().token_ids == loop.generate(PROMPT, SAMPLED).token_ids
    assert list(generation) == []
