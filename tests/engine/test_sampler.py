"""Which law and which random number decides what, checked against the definition written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark.core.block_verification import BlockVerification
from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.hashed_law import HashedLaw
from dspark.core.penalties import TokenHistory, penalised
from dspark.core.rejection import RejectionRule, TokenRejection, verify, verify_greedy
from dspark.core.sampling import draw, probabilities
from dspark.core.streams import RandomStreams, Stream, UniformReader
from dspark.engine.sampler import RequestSampler, RoundSampler
from dspark.types import SamplingParams

V, PROMPT, OUTPUT, GAMMA = 8, (0, 3, 1), (2, 2, 4), 3
TARGET, DRAFT = HashedLaw(V, 1, scale=2.0), HashedLaw(V, 2, scale=2.0)
PARAMS = SamplingParams(
    temperature=0.7,
    top_k=6,
    top_p=0.95,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    seed=5,
)


def sampler(
    params: SamplingParams, rule: RejectionRule, token_ids: Tensor | None = None, **options: bool
) -> RoundSampler:
    vocabulary = DraftVocabulary(V, token_ids)
    greedy_drafts = options.get("greedy_drafts", False)
    request = RequestSampler(params, vocabulary, TokenHistory(PROMPT, OUTPUT[:2]), rule, greedy_drafts)
    request.commit(OUTPUT[2:])
    return request.round(start=len(OUTPUT), max_drafts=GAMMA)


def run(one_round: RoundSampler, token_ids: Tensor | None = None) -> list[int]:
    for _ in range(GAMMA):
        logits = DRAFT((*OUTPUT, *one_round.drafts))
        one_round.draft(logits if token_ids is None else logits[token_ids])
    return one_round.drafts


def law(raw: Tensor, params: SamplingParams, drafts: list[int]) -> Tensor:
    return probabilities(penalised(raw, params, TokenHistory(PROMPT, [*OUTPUT, *drafts])), params)


@pytest.mark.parametrize("rule", [TokenRejection(), BlockVerification()], ids=["token", "block"])
@settings(max_examples=40)
@given(seed=st.integers(0, 2**64 - 1))
def test_drafts_and_verdict_follow_the_definition(rule: RejectionRule, seed: int) -> None:
    params = SamplingParams(**{name: getattr(PARAMS, name) for name in PARAMS.__slots__} | {"seed": seed})
    one_round, streams = sampler(params, rule), RandomStreams(seed)
    run(one_round)
    drafts: list[int] = []
    q = []
    for uniform in streams.uniforms(Stream.DRAFT, len(OUTPUT), GAMMA):
        q.append(law(DRAFT((*OUTPUT, *drafts)), params, drafts))
        drafts.append(draw(q[-1], uniform))
    assert one_round.drafts == drafts
    raw = torch.stack([TARGET((*OUTPUT, *drafts[:j])) for j in range(GAMMA + 1)])
    p = torch.stack([law(raw[j], params, drafts[:j]) for j in range(GAMMA + 1)])
    accept = streams.uniforms(Stream.ACCEPT, len(OUTPUT), GAMMA)
    recover = streams.uniforms(Stream.RECOVER, len(OUTPUT), GAMMA + 1)
    assert one_round.judge(raw) == verify(rule, p, torch.stack(q), drafts, accept, recover)


def test_pruned_drafts_come_from_the_scattered_law() -> None:
    known = torch.tensor([6, 1, 4])
    one_round = sampler(PARAMS, TokenRejection(), known)
    run(one_round, known)
    expected: list[int] = []
    for uniform in RandomStreams(PARAMS.seed).uniforms(Stream.DRAFT, len(OUTPUT), GAMMA):
        full = torch.full((V,), -torch.inf)
        full[known] = DRAFT((*OUTPUT, *expected))[known]
        expected.append(draw(law(full, PARAMS, expected), uniform))
    assert one_round.drafts == expected


def test_greedy_drafts_are_judged_with_a_one_hot_law() -> None:
    # q is one-hot: the draft survives with probability p(x), so a uniform just above p(x) rejects it.
    one_round = sampler(SamplingParams(temperature=1.0), TokenRejection(), greedy_drafts=True)
    best = int(DRAFT(OUTPUT).argmax())
    assert one_round.draft(DRAFT(OUTPUT)) == best
    (accept,) = RandomStreams(0).uniforms(Stream.ACCEPT, len(OUTPUT), 1)
    for mass, survives in ((accept - 0.01, 0), (accept + 0.01, 1)):
        rest = (1 - mass) / (V - 1)
        p = torch.full((2, V), rest)
        p[0, best] = mass
        assert one_round.judge(p.log()).accepted == survives


def test_greedy_round_touches_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(UniformReader, "read")
    one_round = sampler(SamplingParams(temperature=0.0), TokenRejection())
    drafts = run(one_round)
    best = [int(TARGET((*OUTPUT, *drafts[:j])).argmax()) for j in range(GAMMA + 1)]
    raw = torch.stack([TARGET((*OUTPUT, *drafts[:j])) for j in range(GAMMA + 1)])
    assert one_round.judge(raw) == verify_greedy(best, drafts)
