"""Texts that batches write follow the target's law, kind by kind (chi-square, fixed seeds), and spoilt batches do not.

Every request of a mixed batch writes two tokens from its own context. Each test uses the level LEVEL / TESTS, so that
a correct batch would fail the file for one in 10,000 choices of seeds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dspark.core.block_verification import BlockVerification
from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.hashed_law import HashedLaw
from dspark.core.laws import Law
from dspark.core.penalties import TokenHistory, penalised
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.core.sampling import probabilities
from dspark.core.streams import Stream
from dspark.engine import batch_sampler
from dspark.engine.batch_sampler import BatchRound
from dspark.engine.request_round import RequestRound
from dspark.engine.sampler import RequestSampler
from dspark.types import SamplingParams

V, GAMMA, LENGTH = 4, 2, 2
TARGET, DRAFT = HashedLaw(V, seed=6, order=1), HashedLaw(V, seed=16, order=1, scale=1.3)
SEEDS, LEVEL, TESTS = 300, 1e-4, 22
TOKEN = TokenRejection()
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """How some requests of a batch sample, and the last token of their context."""

    params: SamplingParams
    context: int = 0
    rule: RejectionRule = TOKEN
    greedy_drafts: bool = False
    copies: Tokens = ()
    judged: int = GAMMA


WARM = SamplingParams(temperature=1.0)
PENALTIES = SamplingParams(temperature=1.2, repetition_penalty=1.6, presence_penalty=0.5, frequency_penalty=0.5)
KINDS = {
    "plain": Kind(WARM),
    "another context": Kind(WARM, context=1),
    "block": Kind(WARM, rule=BlockVerification(), context=2),
    "cool": Kind(SamplingParams(temperature=0.6), context=3),
    "top-p": Kind(SamplingParams(temperature=1.5, top_p=0.8)),
    "top-k, block": Kind(SamplingParams(temperature=0.8, top_k=2), rule=BlockVerification()),
    "min-p": Kind(SamplingParams(temperature=1.3, min_p=0.3), context=1),
    "penalties": Kind(PENALTIES, context=2),
    "greedy drafts": Kind(WARM, greedy_drafts=True),
    "copies": Kind(WARM, copies=(2, 1)),
    "copies, top-p": Kind(SamplingParams(temperature=1.5, top_p=0.8), copies=(2, 1)),
    "one draft judged": Kind(WARM, judged=1, context=3),
}


class Writer:
    """One request."""

    def __init__(self, kind: Kind, seed: int, vocabulary: DraftVocabulary) -> None:
        self.kind, self.text = kind, [kind.context]
        params = replace(kind.params, seed=seed)
        history = TokenHistory([kind.context])
        self.sampler = RequestSampler(params, vocabulary, history, kind.rule, kind.greedy_drafts)

    @property
    def start(self) -> int:
        return len(self.text) - 1


def write(writers: Sequence[Writer], vocabulary: DraftVocabulary) -> None:
    """Rounds of all that are not done, together."""
    while waiting := [writer for writer in writers if writer.start < LENGTH]:
        batch = BatchRound([w.sampler for w in waiting], [w.start for w in waiting], [GAMMA] * len(waiting))
        for row, writer in enumerate(waiting):
            if writer.kind.copies:
                batch.copy(row, writer.kind.copies)
        for _ in range(GAMMA):
            pasts = [(*w.text, *drafts) for w, drafts in zip(waiting, batch.drafts, strict=True)]
            batch.draft(torch.stack([vocabulary.gather(DRAFT(past)) for past in pasts]))
        lengths = [min(w.kind.judged, len(drafts)) for w, drafts in zip(waiting, batch.drafts, strict=True)]
        rows = [
            TARGET((*w.text, *drafts[:i]))
            for w, drafts, length in zip(waiting, batch.drafts, lengths, strict=True)
            for i in range(length + 1)
        ]
        verdicts = batch.judge(torch.stack(rows), lengths)
        for writer, drafts, verdict in zip(waiting, batch.drafts, verdicts, strict=True):
            tokens = [*drafts[: verdict.accepted], verdict.token]
            writer.sampler.commit(tokens)
            writer.text += tokens


def texts(kinds: Sequence[Kind], token_ids: Tensor | None = None) -> list[Counter[Tokens]]:
    """What requests of each kind wrote, all kinds in each batch."""
    vocabulary = DraftVocabulary(V, token_ids)
    observed = [Counter[Tokens]() for _ in kinds]
    for first in range(0, SEEDS, 20):
        writers = [[Writer(kind, seed, vocabulary) for kind in kinds] for seed in range(first, first + 20)]
        write([writer for row in writers for writer in row], vocabulary)
        for row in writers:
            for counter, writer in zip(observed, row, strict=True):
                counter[tuple(writer.text[1 : 1 + LENGTH])] += 1
    return observed


def expected(kind: Kind) -> dict[Tokens, float]:
    law: dict[Tokens, float] = {(): 1.0}
    for _ in range(LENGTH):
        law = {
            (*text, token): chance * share
            for text, chance in law.items()
            for token, share in enumerate(_processed(kind, text).tolist())
        }
    return {text: chance for text, chance in law.items() if chance > 0}


def _processed(kind: Kind, text: Tokens) -> Tensor:
    raw = TARGET((kind.context, *text)).double()
    return probabilities(penalised(raw, kind.params, TokenHistory([kind.context], text)), kind.params)


def p_value(observed: Counter[Tokens], kind: Kind) -> float:
    """Chi-square; cells below five expected are pooled. Impossible texts give 0."""
    law = expected(kind)
    if any(text not in law for text in observed):
        return 0.0
    counts = np.array([(observed[text], observed.total() * share) for text, share in law.items()])
    rare = counts[:, 1] < 5
    cells = np.vstack((counts[~rare], counts[rare].sum(axis=0, keepdims=True))) if rare.any() else counts
    return float(stats.chi2.sf(((cells[:, 0] - cells[:, 1]) ** 2 / cells[:, 1]).sum(), len(cells) - 1))


@pytest.fixture(scope="module")
def mixed() -> dict[str, Counter[Tokens]]:
    return dict(zip(KINDS, texts(list(KINDS.values())), strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_a_mixed_batch_follows_the_target(name: str, mixed: dict[str, Counter[Tokens]]) -> None:
    assert p_value(mixed[name], KINDS[name]) > LEVEL / TESTS


PRUNED = ("plain", "block", "top-p", "top-k, block", "penalties", "greedy drafts")


@pytest.fixture(scope="module")
def pruned() -> dict[str, Counter[Tokens]]:
    """Drafts from three of the four tokens, out of order."""
    return dict(zip(PRUNED, texts([KINDS[name] for name in PRUNED], torch.tensor([3, 0, 2])), strict=True))


@pytest.mark.parametrize("name", PRUNED)
def test_pruned_drafts_leave_the_law_as_it_is(name: str, pruned: dict[str, Counter[Tokens]]) -> None:
    assert p_value(pruned[name], KINDS[name]) > LEVEL / TESTS


TWO = [KINDS["plain"], KINDS["another context"]]


def spoilt() -> float:
    return min(p_value(observed, kind) for observed, kind in zip(texts(TWO), TWO, strict=True))


def test_a_batch_that_judges_with_its_neighbours_laws_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(rounds: Sequence[RequestRound], laws: Sequence[Law | None]) -> list[int | None]:
        tokens = right(rounds, laws)
        for one, law in zip(rounds, [*laws[1:], laws[0]], strict=True):
            assert law is not None
            one.q[-1] = law
        return tokens

    right = batch_sampler._draw_drafts
    monkeypatch.setattr(batch_sampler, "_draw_drafts", shifted)
    assert spoilt() < LEVEL / TESTS


def test_a_batch_that_judges_with_its_neighbours_logits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(rounds: Sequence[RequestRound], logits: Tensor, begins: Sequence[int], place: int) -> list[Law]:
        return right(rounds, logits, [*begins[1:], begins[0]], place)

    right = batch_sampler._target_laws
    monkeypatch.setattr(batch_sampler, "_target_laws", shifted)
    assert spoilt() < LEVEL / TESTS


def test_a_batch_that_shares_random_numbers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_stream(self: RequestRound, stream: Stream, count: int) -> list[float]:
        return self.reader.read(self.params.seed, Stream.DRAFT, self.start, count)

    monkeypatch.setattr(RequestRound, "_uniforms", without_stream)
    assert spoilt() < LEVEL / TESTS


def test_a_batch_that_draws_anew_where_drafts_are_rejected_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark.core.laws.FullLaw.excess", lambda self, q: self)
    assert spoilt() < LEVEL / TESTS
