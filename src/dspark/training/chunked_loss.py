"""The training losses without logit-sized temporaries: logits come in vocabulary chunks, and again in backward.

Both losses equal their eager counterparts, `core.losses.block_loss` and `training.objective.sparse_loss`, but for
rounding; memory grows with slots x chunk instead of slots x vocabulary.

Shapes: N draft slots, V vocabulary, K teacher tokens a slot.
"""

from torch import Tensor
from torch.nn import functional as F

from dspark.core.factored_logits import FactoredLogits, compare_laws, log_probs_at
from dspark.core.losses import BlockLoss, LossCoefficients, weighted_mean
from dspark.training.objective import LossTerms, SparseTeacher, loss_of_log_probs

CHUNK = 4096
"""Tokens of the vocabulary that are read at a time, where nothing else is asked for."""


def chunked_block_loss(
    draft: FactoredLogits,
    target: FactoredLogits,
    targets: Tensor,
    weights: Tensor,
    confidence_logits: Tensor | None,
    coefficients: LossCoefficients,
    chunk: int = CHUNK,
) -> BlockLoss:
    """`block_loss` against the whole law of the target, which gets no gradient.

    `targets` [N] are the gold tokens, `weights` [N] the slots' weights (`slot_weights` of supervised slots; slots of
    weight 0 do not count), `confidence_logits` [N]. `acceptance` of the result is [N]. Raises ConfigError when the
    vocabularies differ or `chunk` is not positive.
    """
    log_p_d, distance = compare_laws(draft, target, targets[:, None], chunk)
    acceptance = 1.0 - 0.5 * distance.detach()
    cross_entropy = weighted_mean(-log_p_d[:, 0], weights)
    l1 = weighted_mean(distance, weights)
    confidence = weights.new_zeros(())
    if confidence_logits is not None:
        bce = F.binary_cross_entropy_with_logits(confidence_logits.to(acceptance.dtype), acceptance, reduction="none")
        confidence = weighted_mean(bce, weights)
    total = coefficients.cross_entropy * cross_entropy + coefficients.l1 * l1 + coefficients.confidence * confidence
    return BlockLoss(total, cross_entropy, l1, confidence, acceptance)


def chunked_sparse_loss(
    draft: FactoredLogits,
    confidence_logits: Tensor | None,
    teacher: SparseTeacher,
    slots: Tensor,
    coefficients: LossCoefficients,
    chunk: int = CHUNK,
) -> LossTerms:
    """`sparse_loss`, its draft logits given as factors; `slots` [N] are numbers within a block.

    Raises ConfigError when `chunk` is not positive.
    """
    log_p_d = log_probs_at(draft, teacher.ids, chunk)
    return loss_of_log_probs(log_p_d, confidence_logits, teacher, slots, coefficients)
