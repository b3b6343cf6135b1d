"""One training step of a drafter: forward over packed blocks, sparse loss, backward, clipped AdamW update."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dspark.core.factored_logits import FactoredLogits, favourites
from dspark.core.losses import LossCoefficients
from dspark.drafters.dspark import DSpark
from dspark.errors import NumericalError
from dspark.training.batches import Batch
from dspark.training.chunked_loss import chunked_sparse_loss
from dspark.training.objective import LossTerms, agreement_of, greedy_agreement, sparse_loss
from dspark.training.optimiser import Optimiser


class DivergenceError(NumericalError):
    """The loss or its gradient is no longer finite."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Losses of one step and `acceptance` [gamma]: 1 - TV per slot where the slots before it were accepted.

    `greedy_acceptance` [gamma] is the same for greedy drafts, which are accepted where both sides have the same
    favourite; evaluation alone counts. Both are teacher-forced, and NaN where no block came so far.
    """

    loss: float
    cross_entropy: float
    total_variation: float
    confidence: float
    acceptance: Tensor
    gradient_norm: float = 0.0
    greedy_acceptance: Tensor | None = None

    @property
    def tau(self) -> float:
        """1 + sum_k prod_{j <= k} alpha_j: the expected accepted length."""
        return 1.0 + float(self.acceptance.nan_to_num(0.0).cumprod(0).sum())

    def as_json(self) -> dict[str, Any]:
        """All figures, with tau."""
        figures = {name: value for name, value in asdict(self).items() if value is not None}
        rates = {name: _rounded(value) for name, value in figures.items() if isinstance(value, Tensor)}
        return figures | rates | {"tau": self.tau}


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


def forward(drafter: DSpark, batch: Batch, objective: Objective) -> LossTerms:
    """The loss of `drafter` on `batch`, with gradient when autograd is on."""
    if objective.vocabulary_chunk is None:
        with objective.autocast(drafter.device):
            logits, confidence = supervised_logits(drafter, batch)
            return sparse_loss(logits, confidence, batch.teacher, batch.slots, objective.coefficients)
    factors, confidence = supervised_factors(drafter, batch, objective)
    return _chunked_loss(factors, confidence, batch, objective, objective.vocabulary_chunk)


def _chunked_loss(
    factors: FactoredLogits, confidence: Tensor | None, batch: Batch, objective: Objective, chunk: int
) -> LossTerms:
    return chunked_sparse_loss(factors, confidence, batch.teacher, batch.slots, objective.coefficients, chunk)


def supervised_logits(drafter: DSpark, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Draft logits [N, V_draft] of the supervised slots, and their confidence logits [N] if there is such a head."""
    hidden = _hidden(drafter, batch)
    # The vocabulary-sized product runs on supervised slots alone; latents need whole blocks (recurrent heads).
    logits = drafter.base_logits(hidden[batch.supervised])
    if drafter.markov_head is not None:
        logits = logits + drafter.markov_head.bias(drafter.markov_latents(hidden, batch.previous)[batch.supervised])
    confidence = drafter.confidence_logits(hidden, batch.previous)
    return logits, None if confidence is None else confidence[batch.supervised]


def supervised_factors(drafter: DSpark, batch: Batch, objective: Objective) -> tuple[FactoredLogits, Tensor | None]:
    """`supervised_logits` with the logits left as factors, in the objective's precision."""
    with objective.autocast(drafter.device):
        factors, confidence = _factors(drafter, batch)
    # Autocast does not reach the products inside the chunked loss: its factors are cast instead.
    return factors.to(objective.precision), confidence


def _factors(drafter: DSpark, batch: Batch) -> tuple[FactoredLogits, Tensor | None]:
    hidden = _hidden(drafter, batch)
    latents = w2 = None
    if drafter.markov_head is not None:
        latents = drafter.markov_latents(hidden, batch.previous)[batch.supervised]
        w2 = drafter.markov_head.markov_w2.weight
    factors = FactoredLogits(hidden[batch.supervised], drafter.head, latents, w2)
    confidence = drafter.confidence_logits(hidden, batch.previous)
    return factors, None if confidence is None else confidence[batch.supervised]


def _hidden(drafter: DSpark, batch: Batch) -> Tensor:
    gamma = batch.supervised.shape[1]
    return drafter.training_states(batch.features, batch.token_ids, batch.anchors, batch.lengths, gamma)


def train_step(
    drafter: DSpark,
    optimiser: Optimiser,
    batch: Batch,
    objective: Objective,
    rate: float,
    clip: float,
) -> StepResult:
    """Update `drafter` once at learning rate `rate`. Raises DivergenceError before a bad update, never after."""
    optimiser.set_rate(rate)
    optimiser.zero_grad()
    terms = forward(drafter, batch, objective)
    terms.total.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(optimiser.parameters, clip)
    if not torch.isfinite(terms.total) or not torch.isfinite(norm):
        raise DivergenceError(
            f"Loss {float(terms.total.detach())} with gradient norm {float(norm)}: "
            "lower optimiser.learning_rate and train in another output directory."
        )
    optimiser.step()
    return _result(terms, batch, float(norm))


@torch.no_grad()
def evaluate_step(drafter: DSpark, batch: Batch, objective: Objective) -> StepResult:
    """The same figures without an update, and the acceptance of greedy drafts."""
    chunk = objective.vocabulary_chunk
    if chunk is None:
        with objective.autocast(drafter.device):
            logits, confidence = supervised_logits(drafter, batch)
        terms = sparse_loss(logits.float(), confidence, batch.teacher, batch.slots, objective.coefficients)
        agreed = greedy_agreement(logits, batch.teacher)
    else:
        factors, confidence = supervised_factors(drafter, batch, objective)
        terms = _chunked_loss(factors, confidence, batch, objective, chunk)
        agreed = agreement_of(favourites(factors, chunk), batch.teacher)
    greedy = conditional_acceptance(agreed, batch.supervised)
    return replace(_result(terms, batch, 0.0), greedy_acceptance=greedy)


def _result(terms: LossTerms, batch: Batch, norm: float) -> StepResult:
    return StepResult(
        loss=float(terms.total.detach()),
        cross_entropy=float(terms.cross_entropy),
        total_variation=float(terms.total_variation),
        confidence=float(terms.confidence),
        acceptance=conditional_acceptance(terms.acceptance, batch.supervised),
        gradient_norm=norm,
    )


def conditional_acceptance(accepted: Tensor, supervised: Tensor) -> Tensor:
    """Mean [gamma] of slot k's chance to be accepted, each block weighing as much as it survives up to k.

    `accepted` [N] holds the chances of the `supervised` [A, gamma] slots, a prefix of each block.
    """
    chances = accepted.new_zeros(supervised.shape).masked_scatter_(supervised, accepted)
    survival = chances.cumprod(1)
    reached = torch.cat([torch.ones_like(survival[:, :1]), survival[:, :-1]], 1) * supervised
    return survival.sum(0) / reached.sum(0)


def _rounded(rates: Tensor) -> list[float]:
    return [round(rate, 4) for rate in rates.nan_to_num(0.0).tolist()]
