"""The sparse loss must equal the full-vocabulary loss when the teacher keeps every token."""

import math

import torch
from torch import Tensor

from dspark.core.losses import LossCoefficients
from dspark.training.batches import draft_teacher
from dspark.training.objective import SparseTeacher, gather_log_probs, greedy_agreement, sparse_loss

N, V = 9, 13
WEIGHTS = LossCoefficients(cross_entropy=0.5, l1=0.9, confidence=0.2, decay=4.0)


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, V, generator=generator, dtype=torch.float64)
    p_t = torch.softmax(2 * torch.randn(N, V, generator=generator, dtype=torch.float64), -1)
    confidence = torch.randn(N, generator=generator, dtype=torch.float64)
    return logits, p_t, confidence, torch.arange(N) % 3


def full_teacher(p_t: Tensor) -> SparseTeacher:
    top = p_t.topk(V, dim=-1)
    return SparseTeacher(top.indices, top.values)


def dense_loss(logits: Tensor, confidence: Tensor, p_t: Tensor, slots: Tensor) -> Tensor:
    w = torch.exp(-slots / WEIGHTS.decay)
    w = w / w.sum()
    p_d = torch.softmax(logits, -1)
    l1 = (p_d - p_t).abs().sum(-1)
    label = (1 - 0.5 * l1).detach()
    bce = -(
        label * torch.nn.functional.logsigmoid(confidence) + (1 - label) * torch.nn.functional.logsigmoid(-confidence)
    )
    cross_entropy = -(p_t * p_d.log()).sum(-1)
    return (w * (0.5 * cross_entropy + 0.9 * l1 + 0.2 * bce)).sum()


def test_equals_dense_loss_and_gradients() -> None:
    logits, p_t, confidence, slots = case()
    gradients = []
    for loss in (
        lambda a, b: sparse_loss(a, b, full_teacher(p_t), slots, WEIGHTS).total,
        lambda a, b: dense_loss(a, b, p_t, slots),
    ):
        a, b = logits.clone().requires_grad_(), confidence.clone().requires_grad_()
        value = loss(a, b)
        value.backward()
        gradients.append((value.detach(), a.grad, b.grad))
    for ours, oracle in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, oracle, atol=1e-10, rtol=0)


def test_gather_log_probs_passes_gradcheck() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    ids = torch.tensor([[0, 2], [4, 4], [1, 3]])
    assert torch.autograd.gradcheck(lambda x: gather_log_probs(x, ids), (logits,))


def test_mass_outside_the_draft_vocabulary_counts_as_lost() -> None:
    logits = torch.zeros(1, V)
    teacher = SparseTeacher(torch.tensor([[3, 0]]), torch.tensor([[0.6, 0.0]]))
    terms = sparse_loss(logits, None, teacher, torch.tensor([0]), WEIGHTS)
    assert torch.isclose(terms.acceptance[0], torch.tensor(1 / V))
    assert torch.isclose(terms.total_variation, torch.tensor(2 * (1 - 1 / V)))


def test_confidence_is_taught_the_acceptance_and_does_not_move_it() -> None:
    logits, p_t, confidence, slots = case(2)
    logits.requires_grad_()
    only_confidence = LossCoefficients(0.0, 0.0, 1.0)
    terms = sparse_loss(logits, confidence, full_teacher(p_t), slots, only_confidence)
    assert not terms.acceptance.requires_grad
    terms.total.backward()
    assert logits.grad is None or not logits.grad.any()


def test_later_slots_weigh_less() -> None:
    logits, p_t, _, _ = case(3)
    weights = LossCoefficients(1.0, 0.0, 0.0, decay=1.0)
    first, second = (
        float(sparse_loss(logits[i : i + 1], None, full_teacher(p_t[i : i + 1]), torch.tensor([0]), weights).total)
        for i in (0, 1)
    )
    both = sparse_loss(logits[:2], None, full_teacher(p_t[:2]), torch.tensor([0, 2]), weights)
    e2 = math.exp(-2.0)
    assert math.isclose(float(both.total), (first + e2 * second) / (1 + e2), rel_tol=1e-6)


def test_greedy_drafts_agree_where_both_favourites_are_the_same_token() -> None:
    logits, p_t, _, _ = case(1)
    logits[:3] = p_t[:3].log()
    assert (
        greedy_agreement(logits, full_teacher(p_t)).tolist() == (logits.argmax(-1) == p_t.argmax(-1)).float().tolist()
    )
    assert greedy_agreement(logits, full_teacher(p_t))[:3].all()


def test_a_favourite_that_cannot_be_drafted_is_never_met() -> None:
    """Ids outside the draft vocabulary are stored as id 0 with probability 0."""
    draft_index = torch.tensor([0, -1, 1])
    teacher = draft_teacher(torch.tensor([[1, 0], [2, 1]]), torch.tensor([[0.7, 0.2], [0.6, 0.4]]), draft_index)
    logits = torch.tensor([[5.0, 1.0], [0.0, 1.0]])
    assert greedy_agreement(logits, teacher).tolist() == [0.0, 1.0]
