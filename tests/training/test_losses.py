"""The trainer's sparse loss against the eager oracle of `core.losses`, where both say the same."""

import torch

from dspark.core.losses import LossCoefficients, block_loss
from dspark.training.objective import SparseTeacher, sparse_loss


def test_total_variation_and_confidence_agree_with_the_oracle_in_value_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    draft, target = (torch.randn(3, 4, 11, generator=generator) for _ in range(2))
    confidence = torch.randn(3, 4, generator=generator)
    supervised = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    targets = torch.zeros(3, 4, dtype=torch.long)

    eager, sparse = draft.clone().requires_grad_(), draft.clone().requires_grad_()
    coefficients = LossCoefficients(0.0, 0.9, 0.4, 4.0)
    oracle = block_loss(eager, target, targets, supervised, confidence, coefficients)
    teacher = SparseTeacher(torch.arange(11).expand(7, 11), target[supervised].softmax(-1))
    slots = torch.arange(4).expand(3, 4)[supervised]
    terms = sparse_loss(
        sparse[supervised], confidence[supervised], teacher, slots, LossCoefficients(0.0, 0.9, 0.4, 4.0)
    )
    oracle.total.backward()
    terms.total.backward()

    torch.testing.assert_close(terms.total_variation, oracle.l1.detach())
    torch.testing.assert_close(terms.confidence, oracle.confidence.detach())
    torch.testing.assert_close(terms.acceptance, oracle.acceptance[supervised])
    torch.testing.assert_close(sparse.grad, eager.grad, atol=1e-7, rtol=1e-5)


def test_soft_cross_entropy_is_the_mean_of_the_oracles_hard_one_over_the_targets_gold_tokens() -> None:
    """They differ for any one gold token; over tokens drawn from p_t they agree, which is why one may stand in."""
    generator = torch.Generator().manual_seed(1)
    draft, target = (torch.randn(1, 1, 11, generator=generator) for _ in range(2))
    p_t, supervised = target[0, 0].softmax(-1), torch.ones(1, 1).bool()
    hard = torch.stack([
        block_loss(draft, target, torch.tensor([[gold]]), supervised).cross_entropy for gold in range(11)
    ])  # fmt: skip
    teacher = SparseTeacher(torch.arange(11)[None], p_t[None])
    soft = sparse_loss(draft[0], None, teacher, torch.tensor([0]), LossCoefficients()).cross_entropy
    torch.testing.assert_close(soft, p_t @ hard)
    assert float((hard - soft).abs().min()) > 1e-3
