"""Replay gives the tallies of the reference loop: exactly at temperature 0, in law above it."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dspark.core.block_verification import BlockVerification
from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.hashed_law import HashedLaw
from dspark.core.output_law import Scheme, Tokens, round_outcomes
from dspark.core.rejection import TokenRejection
from dspark.core.sampling import probabilities
from dspark.core.tau import Round, RoundTally
from dspark.drafters.config import HeadKind
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.stops import Output
from dspark.errors import ConfigError
from dspark.evaluation.replay import Replay, acceptance_table, drawn, replay_rounds
from dspark.evaluation.target_text import Question, TargetText, TextWriter
from dspark.evaluation.text_store import TextStore
from dspark.types import SamplingParams, as_ids
from tests.evaluation.tiny import CHAINS, TAPS, chain, drafter, native

Event = tuple[Tokens, frozenset[tuple[Round, int]]]
"""What one request gave: its tokens, and its rounds with their counts."""
HEADS = (None, *HeadKind)
ENDING = ((8, 1, (3, 1, 2)), (4, 3, (3, 0, 2)))
"""(seed, stop token, kept draft tokens) of models whose accepted drafts reach the stop token, or pass the limit."""


# Rounds along a known text.


def output_of(tokens: Tokens, limit: int, end_ids: frozenset[int] = frozenset()) -> Output:
    output = Output(limit, end_ids, (), None)
    output.take(tokens)
    return output


def rounds(tokens: Tokens, limit: int, acceptance: list[list[float]], end: frozenset[int] = frozenset()) -> Counter:
    return replay_rounds(acceptance, output_of(tokens, limit, end), lambda chance: chance == 1).entries


def test_a_round_closes_with_a_token_of_the_target() -> None:
    found = rounds((0,) * 9, 6, [[0.0, 1.0]] + 4 * [[1.0, 0.0]])
    assert found == Counter({Round(2, 2, 0, 1): 1, Round(2, 2, 1, 2): 2})


def test_the_last_round_counts_acceptances_beyond_the_limit() -> None:
    assert rounds((0,) * 9, 2, [[1.0, 1.0, 1.0]]) == Counter({Round(3, 3, 3, 1): 1})


def test_an_accepted_stop_token_ends_the_round_and_counts() -> None:
    assert rounds((0, 0, 5), 9, [[1.0] * 4] * 2, frozenset({5})) == Counter({Round(4, 4, 2, 2, ended=True): 1})


def test_a_stop_token_of_the_targets_own_does_not() -> None:
    assert rounds((0, 0, 5), 9, [[1.0, 0.0, 1.0]] * 2, frozenset({5})) == Counter({Round(3, 3, 1, 2): 1})


def test_a_text_of_one_token_has_no_rounds() -> None:
    tally = replay_rounds([], output_of((5,), 9, frozenset({5})), lambda chance: True)
    assert (tally.rounds, tally.first_tokens) == (0, 1)


def test_simulations_differ_and_repeat() -> None:
    draws = [[accept(0.5) for _ in range(64)] for accept in (drawn(1, 0), drawn(1, 1), drawn(2, 0), drawn(1, 0))]
    assert draws[0] == draws[3]
    assert len({tuple(draw) for draw in draws}) == 3
    assert {accept(chance) for accept in (drawn(1, 0),) for chance in (1.0,) * 99} == {True}
    assert {accept(chance) for accept in (drawn(1, 0),) for chance in (0.0,) * 99} == {False}


# Laws, by enumeration.


def event(tokens: Tokens, entries: Counter[Round]) -> Event:
    return tokens, frozenset(entries.items())


def loop_law(scheme: Scheme, limit: int, prompt: Tokens) -> dict[Event, float]:
    """Joint law of tokens and rounds when decoding with `scheme`, counted as a request does."""
    law: Counter[Event] = Counter()

    def go_on(chance: float, tokens: Tokens, entries: tuple[Round, ...]) -> None:
        if len(tokens) == limit or tokens[-1] in scheme.end_tokens:
            law[event(tokens, Counter(entries))] += chance
            return
        for outcome in round_outcomes(scheme, prompt + tokens):
            for token, share in enumerate(outcome.closing.tolist()):
                if share > 0:
                    output = output_of((*tokens, *outcome.accepted, token), limit, scheme.end_tokens)
                    emitted, accepted = len(output.token_ids) - len(tokens), len(outcome.accepted)
                    ended = output.ended_by_token and emitted <= accepted
                    entry = Round(scheme.gamma, scheme.gamma, emitted if ended else accepted, emitted, ended)
                    go_on(chance * outcome.probability * share, tuple(output.token_ids), (*entries, entry))

    for first, chance in enumerate(scheme.target(prompt).tolist()):
        if chance > 0:
            go_on(chance, (first,), ())
    return law


def texts(scheme: Scheme, limit: int, prompt: Tokens) -> Iterator[tuple[Tokens, list[float]]]:
    """Every text that a writer can write, with the target's probability of each of its tokens."""
    waiting: list[tuple[Tokens, list[float]]] = [((), [])]
    while waiting:
        tokens, chances = waiting.pop()
        if len(tokens) == limit + scheme.gamma or (tokens and len(tokens) <= limit and tokens[-1] in scheme.end_tokens):
            yield tokens, chances
            continue
        for token, chance in enumerate(scheme.target(prompt + tokens).tolist()):
            if chance > 0:
                waiting.append(((*tokens, token), [*chances, chance]))


def replays(acceptance: list[list[float]], output: Output) -> Iterator[tuple[float, RoundTally]]:
    """Every way in which the rounds along a text can go, with its probability."""
    scripts: list[list[bool]] = [[]]
    while scripts:
        script, taken, weight = scripts.pop(), list[bool](), [1.0]

        def accept(chance: float, script=script, taken=taken, weight=weight) -> bool:
            if len(taken) == len(script):
                scripts.append([*taken, False])
                script.append(True)
            passed = script[len(taken)]
            taken.append(passed)
            weight[0] *= chance if passed else 1 - chance
            return passed

        tally = replay_rounds(acceptance, output, accept)
        yield weight[0], tally


def replay_law(scheme: Scheme, limit: int, prompt: Tokens, table) -> dict[Event, float]:
    """The same by replay, with acceptances `table(tokens, chances, anchors)`."""
    law: Counter[Event] = Counter()
    for tokens, chances in texts(scheme, limit, prompt):
        output = output_of(tokens, limit, scheme.end_tokens)
        acceptance = table(tokens, chances, len(output.token_ids) - 1)
        for weight, tally in replays(acceptance, output):
            if weight > 0:
                law[event(tuple(output.token_ids), tally.entries)] += prod(chances) * weight
    return law


def distance(one: dict[Event, float], other: dict[Event, float]) -> float:
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2


def hashed_scheme(order: int | None, gamma: int, end_tokens: frozenset[int]) -> Scheme:
    target, draft = HashedLaw(3, 1, 2), HashedLaw(3, 2, order)
    law = cache(lambda tokens: target(tokens).double().softmax(-1))
    return Scheme(
        law, lambda context, drafts: draft((context[-1], *drafts)).double().softmax(-1), TokenRejection(), gamma,
        end_tokens=end_tokens,
    )  # fmt: skip


@pytest.mark.parametrize(("order", "gamma", "limit", "end"), [
    (1, 2, 3, ()), (None, 2, 3, (2,)), (2, 3, 2, (0,)), (1, 1, 4, (1, 2)),
])  # fmt: skip
def test_rounds_have_the_loops_law(order: int | None, gamma: int, limit: int, end: Tokens) -> None:
    scheme, prompt = hashed_scheme(order, gamma, frozenset(end)), (0, 1)

    def table(tokens: Tokens, chances: list[float], anchors: int) -> list[list[float]]:
        rows = []
        for anchor in range(anchors):
            row = []
            for k in range(anchor + 1, anchor + 1 + gamma):
                q = scheme.draft(prompt + tokens[: anchor + 1], tokens[anchor + 1 : k])
                row.append(min(1.0, float(q[tokens[k]]) / chances[k]) if k < len(tokens) else 0.0)
            rows.append(row)
        return rows

    expected = loop_law(scheme, limit, prompt)
    found = replay_law(scheme, limit, prompt, table)
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 10
    assert distance(found, expected) < 1e-9


FILTERED = SamplingParams(temperature=0.8, top_k=3, top_p=0.95, max_tokens=2)
ADVISED = SamplingParams(temperature=0.2, top_p=0.9, max_tokens=4)
"""What SmolLM2 is sampled with: so sharp that few texts are left, hence longer ones."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "pruned", "params"),
    [
        (None, False, FILTERED),
        (HeadKind.VANILLA, True, FILTERED),
        (HeadKind.RNN, False, FILTERED),
        (HeadKind.VANILLA, False, ADVISED),
    ],
)
def test_real_rounds_have_the_loops_law(head: HeadKind | None, pruned: bool, params: SamplingParams) -> None:
    """The loop's side decodes with the drafter step by step; replay reads all acceptances of a text in one pass."""
    target, gamma, limit, prompt = native(4, (3,)), 2, params.max_tokens, (0, 2)
    kept = torch.tensor([3, 0, 2]) if pruned else None
    module = drafter(target, gamma, head, kept)

    @cache
    def states(context: Tokens):
        return target.states(as_ids(context)[None], taps=TAPS)

    @cache
    def p(context: Tokens) -> Tensor:
        return probabilities(target.logits(states(context).last_hidden[0, -1]).double(), params)

    @cache
    def q(context: Tokens, drafts: Tokens) -> Tensor:
        memory = module.new_cache(16)
        module.extend(states(context[:-1]).features[0], memory)
        block = module.begin(context[-1], memory, gamma)
        logits = [block.step(previous)[0] for previous in (context[-1], *drafts)][-1]
        return probabilities(DraftVocabulary(4, kept).scatter(logits).double(), params)

    def table(tokens: Tokens, chances: list[float], anchors: int) -> list[list[float]]:
        text = TargetText(Question(prompt, params), tokens, tuple(chances))
        return acceptance_table(module, text, states(prompt + tokens[:-1]).features[0], anchors, gamma).tolist()

    scheme = Scheme(p, q, TokenRejection(), gamma, end_tokens=frozenset({3}))
    expected = loop_law(scheme, limit, prompt)
    assert len(expected) > 10
    assert distance(replay_law(scheme, limit, prompt, table), expected) < 1e-5


# Temperature 0: equality with the loop itself.


def store(directory: Path, target, overhang: int = 4, taps: tuple[int, ...] = TAPS) -> TextStore:
    return TextStore(directory, TextWriter(target, taps, overhang))


@pytest.mark.parametrize("head", HEADS)
def test_greedy_tallies_are_the_loops(head: HeadKind | None, tmp_path: Path) -> None:
    total = RoundTally()
    for (seed, stop, kept), pruned in product(ENDING, (False, True)):
        target = native(4, (stop,), seed)
        module = drafter(target, 3, head, torch.tensor(kept) if pruned else None, seed)
        written = store(tmp_path / str(seed), target)
        for prompt, (tokens, cap) in product(
            ((0, 3, 1), (1, 1), (3, 0), (2,)), ((1, None), (2, None), (12, 2), (12, 3))
        ):
            params, options = SamplingParams(max_tokens=tokens), DecodeOptions(max_draft_tokens=cap)
            expected = ReferenceLoop(target, module, options).generate(prompt, params)
            found = Replay(written, module, options).generate(prompt, params)
            assert (found.token_ids, found.finish_reason) == (expected.token_ids, expected.finish_reason)
            assert found.tally == expected.tally, (seed, pruned, prompt, tokens, cap)
            total = RoundTally.merged((total, found.tally))
    assert any(entry.ended for entry in total.entries), "no stop token was accepted"
    assert any(entry.accepted >= entry.emitted and not entry.ended for entry in total.entries), "no limit was passed"
    assert total.tau > 1.2


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("kept", [None, (3, 0, 2)])
def test_greedy_tallies_of_chains_are_the_loops_and_the_text_is_plain(
    kind: str, kept: Tokens | None, tmp_path: Path
) -> None:
    total = RoundTally()
    for seed, prompt in product((1, 4, 8), ((0, 3, 1), (1, 1), (2,))):
        target = native(4, (), seed)
        module = chain(target, kind, 3, None if kept is None else torch.tensor(kept), seed)
        written = store(tmp_path / str(seed), target)
        params = SamplingParams(max_tokens=16)
        expected = ReferenceLoop(target, module).generate(prompt, params)
        found = Replay(written, module).generate(prompt, params)
        assert found.token_ids == expected.token_ids == ReferenceLoop(target).generate(prompt, params).token_ids
        assert found.tally == expected.tally, (seed, prompt)
        total = RoundTally.merged((total, found.tally))
    assert total.tau > 1.2
    assert total.tau < 1 + module.info.gamma, "no draft was rejected"


def test_a_sampled_tally_holds_all_simulations(tmp_path: Path) -> None:
    target = native(5)
    module, written = drafter(target, 3), store(tmp_path, target)
    params = SamplingParams(temperature=0.9, max_tokens=12, seed=4)
    first, again, many = (Replay(written, module, simulations=n).generate((0, 3, 1), params) for n in (1, 1, 8))
    assert first.tally == again.tally
    assert (first.tally.output_tokens, many.tally.output_tokens) == (12, 8 * 12)
    assert first.token_ids == many.token_ids == ReferenceLoop(target).generate((0, 3, 1), params).token_ids


# What it refuses.


@pytest.mark.parametrize("options", [
    DecodeOptions(rule=BlockVerification()), DecodeOptions(greedy_drafts=True), DecodeOptions(max_draft_tokens=0),
    DecodeOptions(admits=lambda prefix: True),
])  # fmt: skip
def test_other_ways_to_decode_are_refused(options: DecodeOptions, tmp_path: Path) -> None:
    target = native(5)
    with pytest.raises(ConfigError):
        Replay(store(tmp_path, target), drafter(target, 3), options)


def test_texts_must_go_on_as_far_as_a_block(tmp_path: Path) -> None:
    target = native(5)
    with pytest.raises(ConfigError, match="3 drafts"):
        Replay(store(tmp_path, target, overhang=2), drafter(target, 3))
