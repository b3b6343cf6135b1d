"""A round of many requests gives each what a round of its own gives, to the bit, whatever else is in the batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark.core.block_verification import BlockVerification
from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.penalties import TokenHistory
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.engine.batch_sampler import BatchRound
from dspark.engine.sampler import RequestSampler
from dspark.errors import ConfigError, SamplingError
from dspark.types import SamplingParams, Verdict

V, GAMMA = 300, 4
RULES = (TokenRejection(), BlockVerification())


def known(size: int) -> Tensor:
    """Target ids [V_draft] of a pruned draft vocabulary, out of order."""
    return torch.randperm(V, generator=torch.Generator().manual_seed(size))[:size]


@dataclass(frozen=True)
class Ask:
    """One request and its logits: those of every slot, whatever was drafted before (the batch does not look)."""

    params: SamplingParams
    rule: RejectionRule
    greedy_drafts: bool
    start: int
    max_drafts: int
    copied: tuple[int, ...]
    length: int
    target: Tensor = field(repr=False)
    draft: Tensor = field(repr=False)
    prompt: tuple[int, ...] = (3, 5, 5)
    output: tuple[int, ...] = (7, 3)

    def sampler(self, vocabulary: DraftVocabulary) -> RequestSampler:
        history = TokenHistory(self.prompt, self.output)
        return RequestSampler(self.params, vocabulary, history, self.rule, self.greedy_drafts)


@dataclass(frozen=True)
class Outcome:
    drafts: list[list[int]]
    verdicts: list[Verdict]


def play(asks: Sequence[Ask], token_ids: Tensor | None) -> Outcome:
    """The asks as one batch."""
    vocabulary = DraftVocabulary(V, token_ids)
    batch = BatchRound([ask.sampler(vocabulary) for ask in asks], [a.start for a in asks], [a.max_drafts for a in asks])
    for row, ask in enumerate(asks):
        if ask.copied:
            batch.copy(row, ask.copied)
    for slot in range(GAMMA + 1):
        logits = torch.stack([ask.draft[min(slot, GAMMA - 1)] for ask in asks])
        batch.draft(logits if token_ids is None else logits[:, : len(token_ids)])
    lengths = [min(ask.length, len(drafts)) for ask, drafts in zip(asks, batch.drafts, strict=True)]
    blocks = [ask.target[: length + 1] for ask, length in zip(asks, lengths, strict=True)]
    return Outcome(batch.drafts, batch.judge(torch.cat(blocks), lengths))


def random_logits(rows: int, seed: int, scale: float, masked: Sequence[float]) -> Tensor:
    """Logits [rows, V]; row i has the share masked[i] of its tokens masked."""
    random = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, V, generator=random)
    hidden = torch.rand(rows, V, generator=random) < torch.tensor(masked)[:, None]
    return logits.masked_fill(hidden, -torch.inf)


all_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.6]),
    top_k=st.sampled_from([0, 0, 1, 5, 40, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    seed=st.integers(0, 2**64 - 1),
)
masks = st.sampled_from([0.0, 0.0, 0.0, 0.5, 0.99])


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    seed = draw(st.integers(0, 10**6))
    scale = draw(st.sampled_from([0.3, 2.0, 8.0]))
    slots = [draw(masks | st.just(1.0)) for _ in range(GAMMA)]
    # The target's rows are close to the draft's, so that drafts survive; no row is masked altogether.
    draft = random_logits(GAMMA, seed, scale, slots)
    target = random_logits(GAMMA + 1, seed, scale, [draw(masks)] * (GAMMA + 1))
    target[:, 0] = 0.0
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(seed + 1))
    return Ask(
        params=draw(all_params),
        rule=draw(st.sampled_from(RULES)),
        greedy_drafts=draw(st.booleans()),
        start=draw(st.integers(0, 1000)),
        max_drafts=draw(st.integers(0, GAMMA)),
        copied=draw(st.sampled_from([(), (), (), (3,), (1, 2, 3)])),
        length=draw(st.integers(0, GAMMA)),
        target=target + 0.5 * noise,
        draft=draft,
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(asks(), min_size=2, max_size=5), st.sampled_from([None, 40, 299]), st.randoms())
def test_a_batch_gives_what_single_rounds_give(batch: list[Ask], pruned: int | None, random) -> None:  # type: ignore[no-untyped-def]
    token_ids = None if pruned is None else known(pruned)
    alone = [play([ask], token_ids) for ask in batch]
    order = list(range(len(batch)))
    random.shuffle(order)
    together = play([batch[i] for i in order], token_ids)
    assert together.drafts == [alone[i].drafts[0] for i in order]
    assert together.verdicts == [alone[i].verdicts[0] for i in order]


def ask(**changes: object) -> Ask:
    params = SamplingParams(temperature=1.0)
    target, draft = random_logits(GAMMA + 1, 1, 1.0, [0] * (GAMMA + 1)), random_logits(GAMMA, 1, 1.0, [0] * GAMMA)
    plain: dict[str, object] = {
        "params": params, "rule": TokenRejection(), "greedy_drafts": False, "start": 4, "max_drafts": GAMMA,
        "copied": (), "length": GAMMA, "target": target, "draft": draft,
    }  # fmt: skip
    return Ask(**(plain | changes))  # type: ignore[arg-type]


def test_only_the_named_rows_draft() -> None:
    one = ask()
    vocabulary = DraftVocabulary(V)
    batch = BatchRound([one.sampler(vocabulary)] * 3, [4] * 3, [2, 2, 1])
    assert batch.draft(one.draft[:2], rows=[2, 0]).count(None) == 0
    assert [len(drafts) for drafts in batch.drafts] == [1, 0, 1]
    tokens = batch.draft(one.draft[:2], rows=[2, 0])
    assert tokens[0] is None
    assert tokens[1] == batch.drafts[0][1]


def test_a_masked_slot_ends_the_block_for_good() -> None:
    one = ask()
    batch = BatchRound([one.sampler(DraftVocabulary(V))], [4], [GAMMA])
    assert batch.draft(torch.full((1, V), -torch.inf)) == [None]
    assert batch.draft(one.draft[:1]) == [None]
    assert batch.drafts == [[]]


def test_copies_come_before_drafts_and_end_them() -> None:
    one = ask()
    batch = BatchRound([one.sampler(DraftVocabulary(V))] * 2, [4] * 2, [GAMMA] * 2)
    batch.copy(0, (5, 6, 7, 8, 9))
    assert batch.draft(one.draft[:2])[0] is None
    assert batch.drafts[0] == [5, 6, 7, 8, 9]
    with pytest.raises(ConfigError, match="copy before drafting"):
        batch.copy(1, (1,))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_refused(temperature: float) -> None:
    one = ask(params=SamplingParams(temperature=temperature))
    samplers = [one.sampler(DraftVocabulary(V))] * 2
    bad = one.draft[:2].clone()
    bad[1, 5] = torch.nan
    with pytest.raises(SamplingError, match="NaN or \\+inf"):
        BatchRound(samplers, [4] * 2, [1] * 2).draft(bad)
    with pytest.raises(SamplingError, match="NaN or \\+inf"):
        BatchRound(samplers, [4] * 2, [0] * 2).judge(bad, [0, 0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_closing_row_without_tokens_is_refused(temperature: float) -> None:
    one = ask(params=SamplingParams(temperature=temperature))
    with pytest.raises(SamplingError, match="every token is masked"):
        BatchRound([one.sampler(DraftVocabulary(V))], [4], [0]).judge(torch.full((1, V), -torch.inf), [0])


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_draft_logits_elsewhere_come_to_the_host_only_if_someone_reads_more_than_the_likeliest(monkeypatch, penalty):
    calls = []
    monkeypatch.setattr(
        "dspark.engine.batch_sampler.greedy_tokens", lambda logits: calls.append(logits.shape) or [5, 6]
    )
    params = SamplingParams(repetition_penalty=penalty)
    sampler = RequestSampler(params, DraftVocabulary(8), TokenHistory((), ()), TokenRejection(), False)
    batch = BatchRound([sampler] * 2, [0, 0], [1, 1])
    elsewhere = torch.empty(2, 8, device="meta")
    if penalty == 1.0:
        assert batch.draft(elsewhere) == [5, 6]
        assert calls == [(2, 8)]
    else:
        with pytest.raises(NotImplementedError, match="meta"):  # the copy, which meta tensors refuse
            batch.draft(elsewhere)
