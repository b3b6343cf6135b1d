"""One training step of a drafter: forward over packed blocks, sparse loss, backward, clipped AdamW update."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dspark.drafters.drafter_module import DrafterModule
from dspark.errors import NumericalError
from dspark.training.batches import Batch
from dspark.training.forced_loss import BatchLoss, Objective, forced_loss
from dspark.training.objective import LossTerms
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


def train_step(
    drafter: DrafterModule,
    optimiser: Optimiser,
    batch: Batch,
    objective: Objective,
    rate: float,
    clip: float,
    loss: BatchLoss = forced_loss,
) -> StepResult:
    """Update `drafter` once at learning rate `rate`. Raises DivergenceError before a bad update, never after."""
    optimiser.set_rate(rate)
    optimiser.zero_grad()
    terms = loss(drafter, batch, objective)
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
def evaluate_step(
    drafter: DrafterModule, batch: Batch, objective: Objective, loss: BatchLoss = forced_loss
) -> StepResult:
    """The same figures without an update, and the acceptance of greedy drafts."""
    terms = loss(drafter, batch, objective, greedy=True)
    agreed = terms.agreement
    greedy = None if agreed is None else conditional_acceptance(agreed, batch.supervised)
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
