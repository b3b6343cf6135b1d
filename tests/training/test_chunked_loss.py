"""The chunked losses against their eager counterparts: every value and every gradient to 1e-5."""

import dataclasses

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark.core.factored_logits import FactoredLogits
from dspark.core.losses import BlockLoss, LossCoefficients, block_loss, slot_weights
from dspark.training.chunked_loss import chunked_block_loss, chunked_sparse_loss
from dspark.training.objective import LossTerms, SparseTeacher, sparse_loss

COEFFICIENTS = st.sampled_from([
    LossCoefficients(), LossCoefficients.dflash(), LossCoefficients(0.5, 0.9, 0.2, 2.0), LossCoefficients(0.0, 0.0, 1.0)
])  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """A draft whose four factors are leaves, its confidence logits, and a target over the same vocabulary."""

    leaves: list[Tensor]
    target: FactoredLogits
    gold: Tensor
    supervised: Tensor

    @classmethod
    def draw(cls, blocks: int, gamma: int, vocabulary: int, rank: int, seed: int) -> "Case":
        generator = torch.Generator().manual_seed(seed)
        rows, width = blocks * gamma, 5
        shapes = [(rows,), (rows, width), (vocabulary, width), *([(rows, rank), (vocabulary, rank)] if rank else [])]
        leaves = [torch.randn(*shape, generator=generator) for shape in shapes]
        target = (torch.randn(*shape, generator=generator) for shape in ((rows, width), (vocabulary, width)))
        kept = torch.randint(0, gamma + 1, (blocks, 1), generator=generator)
        gold = torch.randint(0, vocabulary, (blocks, gamma), generator=generator)
        return cls(leaves, FactoredLogits(*target), gold, torch.arange(gamma) < kept)

    def fresh(self) -> tuple[list[Tensor], Tensor, FactoredLogits]:
        """(leaves to differentiate, confidence logits [N], draft)."""
        leaves = [leaf.clone().requires_grad_() for leaf in self.leaves]
        return leaves, leaves[0], FactoredLogits(*leaves[1:])


cases = st.builds(
    Case.draw, blocks=st.integers(1, 3), gamma=st.integers(1, 4), vocabulary=st.integers(2, 40),
    rank=st.sampled_from([0, 1, 3]), seed=st.integers(0, 99),
)  # fmt: skip
chunks = st.integers(1, 45)


def logits(draft: FactoredLogits) -> Tensor:
    """The logits as the drafter forms them."""
    whole = draft.hidden @ draft.head.T
    return whole if draft.latents is None else whole + draft.latents @ draft.w2.T


def assert_equal(
    ours: BlockLoss | LossTerms, oracle: BlockLoss | LossTerms, leaves: list[Tensor], expected: list[Tensor]
) -> None:
    for field in dataclasses.fields(oracle):
        a, b = getattr(ours, field.name), getattr(oracle, field.name)
        if b is None:  # the agreement, which nobody asked for
            assert a is None
            continue
        torch.testing.assert_close(a, b.view_as(a), atol=1e-5, rtol=1e-5)
    ours.total.backward()
    oracle.total.backward()
    for a, b in zip(leaves, expected, strict=True):
        found, wanted = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (a, b))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@settings(max_examples=50)
@given(case=cases, coefficients=COEFFICIENTS, chunk=chunks, with_confidence=st.booleans())
def test_the_dense_loss_is_the_oracle(
    case: Case, coefficients: LossCoefficients, chunk: int, with_confidence: bool
) -> None:
    """Slots without supervision are among the rows, at weight 0; sometimes there are no others."""
    leaves, confidence, draft = case.fresh()
    weights = slot_weights(case.supervised, coefficients.decay).flatten()
    ours = chunked_block_loss(
        draft, case.target, case.gold.flatten(), weights, confidence if with_confidence else None, coefficients, chunk
    )
    expected, eager_confidence, eager = case.fresh()
    shape = case.supervised.shape
    oracle = block_loss(
        logits(eager).view(*shape, -1), logits(case.target).view(*shape, -1), case.gold, case.supervised,
        eager_confidence.view(shape) if with_confidence else None, coefficients,
    )  # fmt: skip
    assert_equal(ours, oracle, leaves, expected)


@settings(max_examples=50)
@given(case=cases, coefficients=COEFFICIENTS, chunk=chunks, top_k=st.integers(1, 8), outside=st.booleans())
def test_the_sparse_loss_is_the_eager_one(
    case: Case, coefficients: LossCoefficients, chunk: int, top_k: int, outside: bool
) -> None:
    """Tokens outside the draft vocabulary come as id 0 without probability, so that ids repeat."""
    top = logits(case.target).softmax(-1).topk(min(top_k, case.target.vocabulary))
    ids, probabilities = top.indices, top.values
    if outside:
        lost = top.indices % 2 == 1
        ids, probabilities = ids.masked_fill(lost, 0), probabilities.masked_fill(lost, 0.0)
    teacher, slots = SparseTeacher(ids, probabilities), torch.arange(len(ids)) % case.gold.shape[1]
    leaves, confidence, draft = case.fresh()
    ours = chunked_sparse_loss(draft, confidence, teacher, slots, coefficients, chunk)
    expected, eager_confidence, eager = case.fresh()
    oracle = sparse_loss(logits(eager), eager_confidence, teacher, slots, coefficients)
    assert_equal(ours, oracle, leaves, expected)


def test_a_row_without_weight_moves_nothing() -> None:
    case = Case.draw(blocks=2, gamma=2, vocabulary=9, rank=2, seed=0)
    leaves, confidence, draft = case.fresh()
    weights = torch.tensor([1.0, 0.0, 0.5, 0.0])
    gold = case.gold.flatten()
    chunked_block_loss(draft, case.target, gold, weights, confidence, LossCoefficients(), 4).total.backward()
    for leaf in (leaves[0], leaves[1], leaves[3]):
        assert not leaf.grad[weights == 0].any()
        assert leaf.grad[weights > 0].any()
