"""The loss of teacher-forced blocks, for every drafter whose slots' logits are a product with a head."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dspark.core.factored_logits import FactoredLogits, favourites
from dspark.core.losses import LossCoefficients
from dspark.drafters.drafter_module import DrafterModule
from dspark.errors import ConfigError
from dspark.training.batches import Batch
from dspark.training.chunked_loss import chunked_sparse_loss
from dspark.training.objective import LossTerms, agreement_of, greedy_agreement, sparse_loss


@dataclass(frozen=True, slots=True)
class Objective:
    """What a step minimises and how it computes it.

    With `vocabulary_chunk`, logits are computed for that many tokens at a time and again in the backward pass. With
    `precision` bfloat16, products run in it (autocast); weights, their gradients and the loss stay float32.
    """

    coefficients: LossCoefficients
    vocabulary_chunk: int | None = None
    precision: torch.dtype = torch.float32

    def autocast(self, device: torch.device) -> torch.autocast:
        """The context in which a forward pass runs."""
        return torch.autocast(device.type, self.precision, enabled=self.precision is not torch.float32)


class BatchLoss(Protocol):
    """The loss of a drafter on a batch, with gradient when autograd is on; `greedy` asks for the agreement too."""

    def __call__(
        self, drafter: DrafterModule, batch: Batch, objective: Objective, greedy: bool = False
    ) -> LossTerms: ...


def forced_loss(drafter: DrafterModule, batch: Batch, objective: Objective, greedy: bool = False) -> LossTerms:
    """The `BatchLoss` of teacher-forced blocks against a sparse teacher."""
    chunk, coefficients = objective.vocabulary_chunk, objective.coefficients
    if coefficients.base_cross_entropy:
        raise ConfigError(
            "loss.base_cross_entropy teaches what to put among the candidates, and this drafter has none: set it to 0 "
            "or drafter.candidates to a number"
        )
    with objective.autocast(drafter.device):
        factors, confidence = supervised_factors(drafter, batch)
        logits = factors.dense() if chunk is None else None
        if logits is not None and not greedy:
            # Logits stay as autocast made them: in bfloat16 they and their gradient are half as large.
            return sparse_loss(logits, confidence, batch.teacher, batch.slots, coefficients)
    if logits is not None:
        terms = sparse_loss(logits.float(), confidence, batch.teacher, batch.slots, coefficients)
        return replace(terms, agreement=greedy_agreement(logits, batch.teacher))
    assert chunk is not None
    # Autocast does not reach the products inside the chunked loss: its factors are cast instead.
    factors = factors.to(objective.precision)
    terms = chunked_sparse_loss(factors, confidence, batch.teacher, batch.slots, coefficients, chunk)
    return replace(terms, agreement=agreement_of(favourites(factors, chunk), batch.teacher)) if greedy else terms


def supervised_factors(drafter: DrafterModule, batch: Batch) -> tuple[FactoredLogits, Tensor | None]:
    """Logits [N, V_draft] of the supervised slots as factors, and their confidence logits [N] if there are any.

    The vocabulary-sized product is left to run on supervised slots alone.
    """
    hidden = drafter.forced_states(batch.features, batch.token_ids, batch.anchors, batch.previous, batch.lengths)
    confidence = drafter.confidence_logits(hidden, batch.previous)
    factors = drafter.factors(hidden, batch.previous, batch.supervised)
    return factors, None if confidence is None else confidence[batch.supervised]
