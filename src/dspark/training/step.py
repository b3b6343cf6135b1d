"""One training step of a drafter: forward over packed blocks, sparse loss, backward, clipped AdamW update."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim

from dspark.core.losses import LossCoefficients
from dspark.drafters.dspark import DSpark
from dspark.errors import NumericalError
from dspark.training.batches import Batch
from dspark.training.objective import LossTerms, sparse_loss


class DivergenceError(NumericalError):
    """The loss or its gradient is no longer finite."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Losses of one step and `acceptance` [gamma], the teacher-forced mean of 1 - TV per slot (NaN without labels)."""

    loss: float
    cross_entropy: float
    total_variation: float
    confidence: float
    acceptance: Tensor
    gradient_norm: float = 0.0

    @property
    def tau(self) -> float:
        """1 + sum_k prod_{j <= k} alpha_j: the expected accepted length if slots were independent."""
        return 1.0 + float(self.acceptance.nan_to_num(0.0).cumprod(0).sum())

    def as_json(self) -> dict[str, Any]:
        """All figures, with tau."""
        rounded = [round(rate, 4) for rate in self.acceptance.nan_to_num(0.0).tolist()]
        return asdict(self) | {"acceptance": rounded, "tau": self.tau}


def forward(drafter: DSpark, batch: Batch, coefficients: LossCoefficients) -> LossTerms:
    """The loss of `drafter` on `batch`, with gradient when autograd is on."""
    gamma = batch.supervised.shape[1]
    hidden = drafter.training_states(batch.features, batch.token_ids, batch.anchors, batch.lengths, gamma)
    # The vocabulary-sized product runs on supervised slots alone; latents need whole blocks (recurrent heads).
    logits = drafter.base_logits(hidden[batch.supervised])
    if drafter.markov_head is not None:
        logits = logits + drafter.markov_head.bias(drafter.markov_latents(hidden, batch.previous)[batch.supervised])
    confidence = drafter.confidence_logits(hidden, batch.previous)
    marked = None if confidence is None else confidence[batch.supervised]
    return sparse_loss(logits, marked, batch.teacher, batch.slots, coefficients)


def train_step(
    drafter: DSpark, optimiser: optim.Optimizer, batch: Batch, coefficients: LossCoefficients, rate: float, clip: float
) -> StepResult:
    """Update `drafter` once at learning rate `rate`. Raises DivergenceError before a bad update, never after."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad(set_to_none=True)
    terms = forward(drafter, batch, coefficients)
    terms.total.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_([p for p in drafter.parameters() if p.requires_grad], clip)
    if not torch.isfinite(terms.total) or not torch.isfinite(norm):
        raise DivergenceError(
            f"Loss {float(terms.total.detach())} with gradient norm {float(norm)}: "
            "lower optimiser.learning_rate and train in another output directory."
        )
    optimiser.step()
    return _result(terms, batch, float(norm))


@torch.no_grad()
def evaluate_step(drafter: DSpark, batch: Batch, coefficients: LossCoefficients) -> StepResult:
    """The same figures without an update."""
    return _result(forward(drafter, batch, coefficients), batch, 0.0)


def _result(terms: LossTerms, batch: Batch, norm: float) -> StepResult:
    gamma = batch.supervised.shape[1]
    total = torch.zeros(gamma).index_add_(0, batch.slots, terms.acceptance)
    count = torch.zeros(gamma).index_add_(0, batch.slots, torch.ones_like(terms.acceptance))
    return StepResult(
        loss=float(terms.total.detach()),
        cross_entropy=float(terms.cross_entropy),
        total_variation=float(terms.total_variation),
        confidence=float(terms.confidence),
        acceptance=total / count,
        gradient_norm=norm,
    )
