"""The paper's three training losses, written plainly: the oracle that faster losses are compared with.

Shapes: A blocks, G slots (gamma), V vocabulary (target and draft alike).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark.core.distances import acceptance_rate, total_variation


@dataclass(frozen=True, slots=True)
class LossCoefficients:
    """Weights of the terms, and the decay of slot weights w_k = exp(-k / decay). The defaults are DSpark's.

    `base_cross_entropy` teaches the base logits too, which choose the candidates of drafters that have such.
    """

    cross_entropy: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    decay: float = 4.0
    base_cross_entropy: float = 0.0

    @classmethod
    def dflash(cls) -> "LossCoefficients":
        """Hard cross-entropy alone, as the DFlash baseline is trained."""
        return cls(cross_entropy=1.0, l1=0.0, confidence=0.0)


@dataclass(frozen=True, slots=True)
class BlockLoss:
    """`total` = the weighted sum of the three terms (each a weighted mean over supervised slots).

    `acceptance` [A, G] is 1 - TV per slot, detached, supervised or not.
    """

    total: Tensor
    cross_entropy: Tensor
    l1: Tensor
    confidence: Tensor
    acceptance: Tensor


def slot_weights(supervised: Tensor, decay: float) -> Tensor:
    """exp(-k / decay) at supervised slots of [A, G], else 0."""
    slots = torch.arange(supervised.shape[-1], device=supervised.device)
    return torch.exp(-slots / decay) * supervised


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """sum(w * loss) / sum(w); 0 when no slot counts."""
    return (weights * losses).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def block_loss(
    draft_logits: Tensor,
    target_logits: Tensor,
    targets: Tensor,
    supervised: Tensor,
    confidence_logits: Tensor | None = None,
    coefficients: LossCoefficients = LossCoefficients(),
) -> BlockLoss:
    """Loss of logits [A, G, V] against the gold `targets` [A, G] and the target's own logits, at temperature 1.

    Cross-entropy is with the gold token; L1 is sum_v |p_d - p_t|, twice the total variation; the confidence logits
    [A, G] learn the label 1 - TV. Neither the target nor that label receives a gradient.
    """
    p_t = target_logits.detach().float().softmax(-1)
    p_d = draft_logits.float().softmax(-1)
    weights = slot_weights(supervised, coefficients.decay)
    acceptance = acceptance_rate(p_t, p_d.detach())
    gold = F.cross_entropy(draft_logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    cross_entropy = weighted_mean(gold.view_as(weights), weights)
    l1 = weighted_mean(2.0 * total_variation(p_d, p_t), weights)
    confidence = weights.new_zeros(())
    if confidence_logits is not None:
        bce = F.binary_cross_entropy_with_logits(confidence_logits.float(), acceptance, reduction="none")
        confidence = weighted_mean(bce, weights)
    total = coefficients.cross_entropy * cross_entropy + coefficients.l1 * l1 + coefficients.confidence * confidence
    return BlockLoss(total, cross_entropy, l1, confidence, acceptance)
