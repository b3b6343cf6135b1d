"""The loss of drafters that choose among candidates: what is drawn from, and so what is taught, are K tokens a slot.

Shapes: N supervised slots, K candidates, T teacher tokens a slot, V draft vocabulary.
"""

from dataclasses import replace

import torch
from torch import Tensor

from dspark.core.factored_logits import FactoredLogits, likeliest, log_probs_at
from dspark.core.losses import LossCoefficients
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.dspark import DSpark
from dspark.errors import ConfigError
from dspark.training.batches import Batch
from dspark.training.forced_loss import Objective
from dspark.training.objective import LossTerms, SparseTeacher, agreement_of, weighted_terms


def candidate_loss(drafter: DrafterModule, batch: Batch, objective: Objective, greedy: bool = False) -> LossTerms:
    """The `BatchLoss` of a DSpark with `candidates`. Raises ConfigError for any other drafter."""
    if not isinstance(drafter, DSpark) or drafter.config.candidates is None or drafter.markov_head is None:
        raise ConfigError(f"a {type(drafter).__name__} without candidates has no loss over them")
    count, teacher = drafter.config.candidates, batch.teacher
    with objective.autocast(drafter.device):
        hidden = drafter.forced_states(batch.features, batch.token_ids, batch.anchors, batch.previous, batch.lengths)
        confidence = drafter.confidence_logits(hidden, batch.previous)
        latents = drafter.markov_latents(hidden, batch.previous)[batch.supervised]
    base = FactoredLogits(hidden[batch.supervised], drafter.head).to(objective.precision)
    chunk = objective.vocabulary_chunk or base.vocabulary
    candidates = likeliest(base, count, chunk)
    log_base = log_probs_at(base, torch.cat((candidates, teacher.ids), 1), chunk)
    bias = drafter.markov_head.bias_at(latents, torch.cat((candidates, teacher.ids[:, :1]), 1))
    terms = loss_of_candidates(
        candidates, log_base, bias.float(), None if confidence is None else confidence[batch.supervised].float(),
        teacher, batch.slots, objective.coefficients,
    )  # fmt: skip
    if not greedy:
        return terms
    best = (log_base[:, :count] + bias[:, :count]).argmax(-1, keepdim=True)
    return replace(terms, agreement=agreement_of(candidates.gather(1, best)[:, 0], teacher))


def loss_of_candidates(
    candidates: Tensor,
    log_base: Tensor,
    bias: Tensor,
    confidence_logits: Tensor | None,
    teacher: SparseTeacher,
    slots: Tensor,
    coefficients: LossCoefficients,
) -> LossTerms:
    """Loss of drafts among `candidates` [N, K].

    `log_base` [N, K + T] are base log-probabilities of the candidates and of the teacher's tokens, `bias` [N, K + 1]
    that of the sequential head on the candidates and on the teacher's favourite. Overlap, acceptance and the
    confidence's label are those of what is drawn: softmax over the candidates alone. Cross-entropy also counts the
    teacher's favourite where it is no candidate, so that a slot which missed it learns from it; the base logits' own
    cross-entropy teaches them to propose it.
    """
    count = candidates.shape[1]
    scores = log_base[:, : count + 1] + bias
    p_t = probabilities_of(candidates, teacher)
    overlap = torch.minimum(p_t, scores[:, :count].softmax(-1)).sum(-1)

    favourite, p_favourite = teacher.ids[:, :1], teacher.probabilities[:, :1]
    found = (candidates == favourite).any(-1, keepdim=True)
    log_q = scores.masked_fill(torch.cat((torch.zeros_like(candidates).bool(), found), 1), -torch.inf).log_softmax(-1)
    missing = -torch.where(found, 0.0, p_favourite * log_q[:, count:].masked_fill(found, 0.0)).sum(-1)
    cross_entropy = missing - (p_t * log_q[:, :count]).sum(-1)

    of_base = -(teacher.probabilities * log_base[:, count:]).sum(-1)
    return weighted_terms(cross_entropy, overlap, confidence_logits, slots, coefficients, of_base)


def probabilities_of(tokens: Tensor, teacher: SparseTeacher) -> Tensor:
    """The teacher's probabilities [N, K] of `tokens` [N, K]; 0 for those it did not keep."""
    same = tokens[:, :, None] == teacher.ids[:, None, :]
    return (same * teacher.probabilities[:, None, :]).sum(-1)
