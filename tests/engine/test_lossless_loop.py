"""The whole loop, sampled: the tokens it emits follow the target's law (chi-square, fixed seeds).

Every test uses the level LEVEL / (number of tests), so that a correct loop would fail the file for one in 10,000
choices of seeds. The seeds are fixed: an unchanged loop always passes. Three spoilt loops show the power.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dspark.core.admission import AdmissionPolicy, DraftPrefix, admit_all
from dspark.core.block_verification import BlockVerification
from dspark.core.hashed_law import HashedLaw
from dspark.core.laws import Law
from dspark.core.output_law import Law as TextLaw
from dspark.core.output_law import Scheme, Tokens, target_law
from dspark.core.penalties import TokenHistory, penalised
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.core.row_laws import row_laws
from dspark.core.sampling import probabilities
from dspark.drafters.fake import FakeDrafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine import batch_sampler, request_round
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.request_round import RequestRound
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams

V, GAMMA, PROMPT = 3, 3, (0, 2)
# Seeds chosen so that half to four fifths of the drafts survive in every state: there biases show.
TARGET = HashedLaw(V, seed=6, order=1)
PLAIN = SamplingParams(temperature=1.0)
LEVEL = 1e-4
TESTS = 19
TOKENS = 3200


@dataclass(frozen=True)
class Case:
    """One way to run the loop. `order` is how far the drafter looks back."""

    rule: RejectionRule
    order: int | None = None
    params: SamplingParams = PLAIN
    admits: AdmissionPolicy = admit_all
    greedy_drafts: bool = False
    eos: tuple[int, ...] = ()
    lookup: PromptLookup | None = None

    def loop(self) -> ReferenceLoop:
        target = FakeTarget(TARGET, V, order=1, max_positions=512, eos_token_ids=self.eos)
        drafter = FakeDrafter(
            HashedLaw(V, 31, self.order), V, GAMMA, 6, confidence=lambda tokens: float(sum(tokens) % 3)
        )
        options = DecodeOptions(None, self.rule, self.admits, self.greedy_drafts, lookup=self.lookup)
        return ReferenceLoop(target, drafter, options)

    def texts(self, seeds: int, length: int) -> list[Tokens]:
        loop = self.loop()
        params = replace(self.params, max_tokens=length)
        return [loop.generate(PROMPT, replace(params, seed=seed)).token_ids for seed in range(seeds)]


def confident(prefix: DraftPrefix) -> bool:
    """A threshold on this slot's confidence, which reads the tokens before it."""
    return prefix.confidences[-1] != 0.0


def p_value(observed: Counter[Tokens], expected: TextLaw) -> float:
    """Chi-square of counts against probabilities; cells below five expected are pooled. Impossible texts give 0."""
    if any(text not in expected for text in observed):
        return 0.0
    total = observed.total()
    counts = np.array([(observed[text], total * share) for text, share in expected.items()])
    rare = counts[:, 1] < 5
    cells = np.vstack((counts[~rare], counts[rare].sum(axis=0, keepdims=True))) if rare.any() else counts
    cells = cells[cells[:, 1] > 0]
    return float(stats.chi2.sf(((cells[:, 0] - cells[:, 1]) ** 2 / cells[:, 1]).sum(), len(cells) - 1))


def processed(logits: Tensor, params: SamplingParams, output: Tokens) -> Tensor:
    return probabilities(penalised(logits.double(), params, TokenHistory(PROMPT, output)), params)


def pairs_p_value(case: Case, tokens: int) -> float:
    """Fisher's combination over the token before of the law of the next two, in long texts of a Markov target."""
    texts = case.texts(seeds=tokens // 160, length=160)
    observed: dict[int, Counter[Tokens]] = {before: Counter() for before in range(V)}
    for text in texts:
        for i in range(0, len(text) - 2, 2):
            observed[text[i]][text[i + 1 : i + 3]] += 1
    scheme = Scheme(
        lambda context: processed(TARGET(context), case.params, ()), lambda *_: torch.zeros(V), case.rule, 0
    )
    values = [p_value(observed[before], target_law(scheme, 2, (before,))) for before in range(V) if observed[before]]
    return float(stats.combine_pvalues(np.clip(values, 1e-300, 1)).pvalue)


MARKOV_CASES = {
    "token": Case(TokenRejection()),
    "block": Case(BlockVerification()),
    "token, top-p and min-p": Case(TokenRejection(), params=SamplingParams(temperature=1.5, top_p=0.85, min_p=0.1)),
    "block, top-k": Case(BlockVerification(), params=SamplingParams(temperature=0.6, top_k=2)),
    "block, threshold": Case(BlockVerification(), admits=confident),
    "token, greedy drafts": Case(TokenRejection(), greedy_drafts=True),
    "token, lookup": Case(TokenRejection(), lookup=PromptLookup(drafts=3, match=2)),
    "block, lookup, top-p": Case(
        BlockVerification(), params=SamplingParams(temperature=1.5, top_p=0.85), lookup=PromptLookup(2, match=3)
    ),
}
MORE_CASES = {
    "token": MARKOV_CASES["token"],
    "block": MARKOV_CASES["block"],
    "token, Markov drafter": Case(TokenRejection(), order=1),
    "block, Markov drafter": Case(BlockVerification(), order=1),
    "token, top-k": Case(TokenRejection(), params=SamplingParams(temperature=0.6, top_k=2)),
    "token, threshold": Case(TokenRejection(), admits=confident),
}


@pytest.mark.parametrize("case", MARKOV_CASES.values(), ids=MARKOV_CASES.keys())
def test_tokens_follow_the_target(case: Case) -> None:
    assert pairs_p_value(case, TOKENS) > LEVEL / TESTS


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_CASES.values(), ids=MORE_CASES.keys())
def test_tokens_follow_the_target_closely(case: Case) -> None:
    assert pairs_p_value(case, 4 * TOKENS) > LEVEL / TESTS


PENALTIES = SamplingParams(temperature=1.2, repetition_penalty=1.6, presence_penalty=0.5, frequency_penalty=0.5)
SHORT_CASES = {
    "token, penalties": Case(TokenRejection(), params=PENALTIES),
    "token, lookup, penalties": Case(TokenRejection(), params=PENALTIES, lookup=PromptLookup(drafts=2, match=1)),
    "block, penalties": Case(BlockVerification(), params=PENALTIES),
    "token, end token": Case(TokenRejection(), eos=(1,)),
    "block, end token": Case(BlockVerification(), eos=(1,)),
}


@pytest.mark.parametrize("case", SHORT_CASES.values(), ids=SHORT_CASES.keys())
def test_short_texts_follow_the_target(case: Case) -> None:
    observed = Counter(case.texts(seeds=500, length=4))
    scheme = Scheme(
        target=lambda output: processed(TARGET((*PROMPT, *output)), case.params, output),
        draft=lambda *_: torch.zeros(V),
        rule=case.rule,
        gamma=0,
        end_tokens=frozenset(case.eos),
    )
    assert p_value(observed, target_law(scheme, 4)) > LEVEL / TESTS


class Uncorrected(TokenRejection):
    """Spoilt: replaces rejected drafts with draws from p."""

    def correction(self, p: Tensor, q: Tensor, drafts: object, accepted: int) -> Tensor:
        return p[accepted]


def test_a_loop_without_residual_is_caught() -> None:
    assert pairs_p_value(Case(Uncorrected()), TOKENS) < LEVEL / TESTS


@pytest.mark.parametrize("rule", [TokenRejection(), BlockVerification()], ids=["token", "block"])
def test_a_loop_that_accepts_with_the_drafts_random_numbers_is_caught(
    rule: RejectionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_round, "Stream", SimpleNamespace(DRAFT=0, ACCEPT=0, RECOVER=2))
    assert pairs_p_value(Case(rule), TOKENS) < LEVEL / TESTS


def test_a_loop_that_judges_with_unprocessed_drafts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    raw: list[Law | None] = []

    def remembering(logits: Tensor, rows: Sequence[int], params: SamplingParams, *ids: None) -> list[Law | None]:
        if ids:  # the drafter's
            raw[:] = row_laws(logits, rows, PLAIN, *ids)
        return row_laws(logits, rows, params, *ids)

    def add_with_raw_law(one: RequestRound, token: int, q: Law | None = None) -> None:
        add(one, token, *raw)

    add = RequestRound.add
    monkeypatch.setattr(batch_sampler, "row_laws", remembering)
    monkeypatch.setattr(RequestRound, "add", add_with_raw_law)
    assert pairs_p_value(MORE_CASES["token, top-k"], TOKENS) < LEVEL / TESTS
