"""One product of the LM head for a whole step: the same verdicts as logits give, which greedy rounds never see."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.hashed_law import HashedLaw
from dspark.core.penalties import TokenHistory
from dspark.core.rejection import TokenRejection
from dspark.engine.batch_sampler import BatchRound
from dspark.engine.judging import judge_rounds
from dspark.engine.sampler import RequestSampler
from dspark.errors import SamplingError
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams

V, ORDER = 6, 2
PARAMS = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(logprobs=1),
    SamplingParams(temperature=1.0, seed=3),
]


class Finder(FakeTarget):
    """Finds likeliest tokens, and remembers for how many rows it gave logits out."""

    def __init__(self) -> None:
        super().__init__(HashedLaw(V, 1, ORDER), V, ORDER)
        self.spelled_out = 0

    def logits(self, last_hidden: Tensor) -> Tensor:
        self.spelled_out += len(last_hidden)
        return super().logits(last_hidden)

    def best_tokens(self, last_hidden: Tensor) -> tuple[Tensor, Tensor]:
        best, tokens = super().logits(last_hidden).max(-1)
        return best, tokens


def rounds(asked: Sequence[Sequence[tuple[SamplingParams, list[int]]]]) -> list[tuple[BatchRound, list[int]]]:
    drawn = []
    for group in asked:
        samplers = [
            RequestSampler(params, DraftVocabulary(V), TokenHistory([1]), TokenRejection(), greedy_drafts=False)
            for params, _ in group
        ]
        sampler = BatchRound(samplers, [2] * len(group), [3] * len(group))
        for row, (_, drafts) in enumerate(group):
            sampler.copy(row, drafts)
        drawn.append((sampler, [len(drafts) for _, drafts in group]))
    return drawn


REQUEST = st.tuples(st.sampled_from(PARAMS), st.lists(st.integers(0, V - 1), max_size=3))


@settings(max_examples=50)
@given(asked=st.lists(st.lists(REQUEST, max_size=4), min_size=1, max_size=3))
def test_verdicts_are_those_of_full_logits(asked: list[list[tuple[SamplingParams, list[int]]]]) -> None:
    finder, plain = Finder(), FakeTarget(HashedLaw(V, 1, ORDER), V, ORDER)
    texts = [[0, 1, *drafts] for group in asked for _, drafts in group]
    states = [plain.forward(torch.tensor(text), plain.new_cache(9)).last_hidden[1:] for text in texts]
    hidden = torch.cat([torch.zeros(0, ORDER + 2), *states])
    assert judge_rounds(finder, rounds(asked), hidden) == judge_rounds(plain, rounds(asked), hidden)
    needed = sum(1 + len(drafts) for group in asked for params, drafts in group if params != PARAMS[0])
    assert finder.spelled_out == needed


def test_what_is_not_finite_is_an_error_and_no_token() -> None:
    class Broken(Finder):
        def best_tokens(self, last_hidden: Tensor) -> tuple[Tensor, Tensor]:
            return torch.full((len(last_hidden),), torch.nan), torch.zeros(len(last_hidden), dtype=torch.int64)

    with pytest.raises(SamplingError, match="NaN"):
        judge_rounds(Broken(), rounds([[(SamplingParams(), [])]]), torch.zeros(1, ORDER + 2))
