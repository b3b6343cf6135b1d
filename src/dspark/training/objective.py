"""The training loss against a sparse teacher: soft cross-entropy, total variation and confidence.

The target's distribution is kept as its K largest probabilities. Cross-entropy and overlap need draft
log-probabilities at those K tokens alone, so nothing vocabulary-sized is stored but the draft logits themselves.

Shapes: N supervised draft slots, K teacher tokens a slot, V draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dspark.core.losses import LossCoefficients


@dataclass(frozen=True, slots=True)
class SparseTeacher:
    """Per slot the teacher's K likeliest tokens: draft-vocabulary `ids` [N, K] and exact `probabilities` [N, K].

    Likeliest first, but tokens outside the draft vocabulary have probability 0 here, wherever they stand: their mass
    cannot be matched, so it counts as loss.
    """

    ids: Tensor
    probabilities: Tensor


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Weighted means of the terms, their sum `total`, and the unweighted acceptance 1 - TV [N] (detached).

    `weight` is the sum of the slots' weights: terms of several batches are averaged by it. `agreement` [N] is
    `greedy_agreement`, where it was asked for.
    """

    total: Tensor
    cross_entropy: Tensor
    total_variation: Tensor
    confidence: Tensor
    acceptance: Tensor
    weight: Tensor
    agreement: Tensor | None = None


def greedy_agreement(logits: Tensor, teacher: SparseTeacher) -> Tensor:
    """[N] 1 where draft `logits` [N, V] and the teacher, whose tokens come likeliest first, have the same favourite.

    A favourite outside the draft vocabulary, whose probability is 0 here, is never met.
    """
    return agreement_of(logits.argmax(-1), teacher)


def agreement_of(favourites: Tensor, teacher: SparseTeacher) -> Tensor:
    """`greedy_agreement` of drafts whose likeliest tokens [N] are known."""
    met = (favourites == teacher.ids[:, 0]) & (teacher.probabilities[:, 0] > 0)
    return met.float()


class _GatherLogProbs(torch.autograd.Function):
    """log_softmax(logits)[ids] without keeping the log-softmax: backward recomputes it from the normaliser."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, ids: Tensor) -> Tensor:
        normaliser = torch.logsumexp(logits, dim=-1, keepdim=True)
        ctx.save_for_backward(logits, ids, normaliser)
        return logits.gather(-1, ids) - normaliser

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        logits, ids, normaliser = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_logits = (logits - normaliser).exp_().mul_(-grad.sum(-1, keepdim=True))
        return grad_logits.scatter_add_(-1, ids, grad), None


def gather_log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """Draft log-probabilities [N, K] of `ids` [N, K] under `logits` [N, V]."""
    return _GatherLogProbs.apply(logits, ids)  # type: ignore[no-any-return, no-untyped-call]


def sparse_loss(
    logits: Tensor,
    confidence_logits: Tensor | None,
    teacher: SparseTeacher,
    slots: Tensor,
    coefficients: LossCoefficients,
) -> LossTerms:
    """Loss of draft `logits` [N, V] at slot numbers `slots` [N] (0-based within their block).

    TV uses sum_v min(p_t, p_d) over the teacher's K tokens; what lies beyond them is at most the teacher's tail mass.
    """
    return loss_of_log_probs(gather_log_probs(logits, teacher.ids), confidence_logits, teacher, slots, coefficients)


def loss_of_log_probs(
    log_p_d: Tensor,
    confidence_logits: Tensor | None,
    teacher: SparseTeacher,
    slots: Tensor,
    coefficients: LossCoefficients,
) -> LossTerms:
    """`sparse_loss` of a draft whose log-probabilities [N, K] of the teacher's tokens are known."""
    p_t = teacher.probabilities
    cross_entropy = -(p_t * log_p_d).sum(-1)
    overlap = torch.minimum(p_t, log_p_d.exp()).sum(-1)
    return weighted_terms(cross_entropy, overlap, confidence_logits, slots, coefficients)


def weighted_terms(
    cross_entropy_of: Tensor,
    overlap: Tensor,
    confidence_logits: Tensor | None,
    slots: Tensor,
    coefficients: LossCoefficients,
    base_cross_entropy_of: Tensor | None = None,
) -> LossTerms:
    """The terms of slots [N] whose cross-entropy, sum_v min(p_t, p_d) and perhaps base cross-entropy are known."""
    w = torch.exp(-slots.float() / coefficients.decay)
    weight = w.sum()
    # A batch without any supervised slot has the loss 0, not 0 / 0.
    w = w / weight.clamp(min=torch.finfo(w.dtype).tiny)
    cross_entropy = (w * cross_entropy_of).sum()
    acceptance = overlap.detach().clamp(0.0, 1.0)
    # DeepSpec's L1 term is sum |p_d - p_t| = 2 TV, hence the factor.
    total_variation = (w * 2.0 * (1.0 - overlap)).sum()
    confidence = overlap.new_zeros(())
    if confidence_logits is not None:
        bce = torch.nn.functional.binary_cross_entropy_with_logits(confidence_logits, acceptance, reduction="none")
        confidence = (w * bce).sum()
    total = (
        coefficients.cross_entropy * cross_entropy
        + coefficients.l1 * total_variation
        + coefficients.confidence * confidence
    )
    if base_cross_entropy_of is not None:
        total = total + coefficients.base_cross_entropy * (w * base_cross_entropy_of).sum()
    return LossTerms(total, cross_entropy.detach(), total_variation.detach(), confidence.detach(), acceptance, weight)
