"""One training step of a drafter: forward over packed blocks, sparse loss, backward, clipped AdamW update."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dspark.drafters.drafter_module import DrafterModule
from dspark.errors import NumericalError
from dspark.training.batches import Batch
from dspark.training.forced_loss import BatchLoss, Objective, forced_loss
from dspark.training.optimiser import Optimiser
from dspark.training.replica import Replica, clip_gradients
from dspark.training.step_sums import StepSums, conditional_acceptance
from dspark.training.world import ALONE, World


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
    replica: Replica,
    optimiser: Optimiser,
    batches: Iterable[Batch],
    objective: Objective,
    rate: float,
    clip: float,
    loss: BatchLoss = forced_loss,
    world: World = ALONE,
) -> StepResult:
    """Update the drafter once at learning rate `rate`, by the mean loss over all slots of all processes' `batches`.

    Raises DivergenceError, in every process, before a bad update, never after.
    """
    optimiser.set_rate(rate)
    optimiser.zero_grad()
    sums = accumulate(replica, batches, objective, loss)
    sums = sums.over(world)
    for parameter in optimiser.parameters:
        if parameter.grad is not None:
            parameter.grad.div_(sums.weight)
    norm = float(clip_gradients(optimiser.parameters, clip))
    result = _result(sums, norm)
    if not math.isfinite(result.loss) or not math.isfinite(norm):
        raise DivergenceError(
            f"Loss {result.loss} with gradient norm {norm}: "
            "lower optimiser.learning_rate and train in another output directory."
        )
    optimiser.step()
    replica.updated(world)
    return result


def accumulate(replica: Replica, batches: Iterable[Batch], objective: Objective, loss: BatchLoss) -> StepSums:
    """Forward and backward passes of all `batches` of this process; gradients are sums over slots, not yet means."""
    sums: StepSums | None = None
    for batch, last in _marked(batches):
        terms = replica.loss(loss, batch, objective)
        replica.backward(terms.total * terms.weight, last)
        own = StepSums.of(terms, batch)
        sums = own if sums is None else sums + own
    assert sums is not None, "a step needs a batch"
    return sums


def _marked(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is the last; one is made while the one before it waits."""
    iterator = iter(batches)
    ahead = next(iterator, None)
    while ahead is not None:
        batch, ahead = ahead, next(iterator, None)
        yield batch, ahead is None


@torch.no_grad()
def evaluate_step(
    drafter: DrafterModule, batch: Batch, objective: Objective, loss: BatchLoss = forced_loss
) -> StepResult:
    """The same figures without an update, and the acceptance of greedy drafts."""
    terms = loss(drafter, batch, objective, greedy=True)
    agreed = terms.agreement
    greedy = None if agreed is None else conditional_acceptance(agreed, batch.supervised)
    return replace(_result(StepSums.of(terms, batch), 0.0), greedy_acceptance=greedy)


def _result(sums: StepSums, norm: float) -> StepResult:
    loss, cross_entropy, total_variation, confidence = sums.means
    return StepResult(loss, cross_entropy, total_variation, confidence, sums.acceptance, norm)


def _rounded(rates: Tensor) -> list[float]:
    return [round(rate, 4) for rate in rates.nan_to_num(0.0).tolist()]
