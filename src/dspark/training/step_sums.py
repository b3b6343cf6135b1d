"""The sums that a step's figures are made of. They add over micro-batches and over processes, so that a step's loss is
the same however its answers are divided: every slot counts by its weight among all slots of the step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.training.batches import Batch
from dspark.training.objective import LossTerms
from dspark.training.world import World

_SCALARS = 5


@dataclass(frozen=True, slots=True)
class StepSums:
    """`values` [5 + 2 gamma], float64: the slots' weight; total, cross-entropy, variation and confidence, each times
    the weight; and by slot what survived it and what reached it.
    """

    values: Tensor

    @classmethod
    def of(cls, terms: LossTerms, batch: Batch) -> "StepSums":
        """The sums of one batch."""
        losses = torch.stack([terms.total.detach(), terms.cross_entropy, terms.total_variation, terms.confidence])
        weight = terms.weight.double().reshape(1)
        survived, reached = survival(terms.acceptance, batch.supervised)
        return cls(torch.cat([weight, weight * losses.double(), survived.double(), reached.double()]))

    def __add__(self, other: "StepSums") -> "StepSums":
        return StepSums(self.values + other.values)

    def over(self, world: World) -> "StepSums":
        """The sums of all processes."""
        return StepSums(world.sum(self.values))

    @property
    def weight(self) -> float:
        """What all slots weigh together."""
        return float(self.values[0])

    @property
    def means(self) -> list[float]:
        """Total, cross-entropy, total variation and confidence: weighted means over all slots."""
        return (self.values[1:_SCALARS] / self.values[0]).tolist()

    @property
    def acceptance(self) -> Tensor:
        """[gamma] float32, see `conditional_acceptance`."""
        survived, reached = self.values[_SCALARS:].chunk(2)
        return (survived / reached).float()


def survival(accepted: Tensor, supervised: Tensor) -> tuple[Tensor, Tensor]:
    """Over all blocks, [gamma] each: the chances that a draft survives slot k, and that it comes as far as slot k.

    `accepted` [N] holds the chances of the `supervised` [A, gamma] slots, a prefix of each block.
    """
    chances = accepted.new_zeros(supervised.shape).masked_scatter_(supervised, accepted)
    survived = chances.cumprod(1)
    reached = torch.cat([torch.ones_like(survived[:, :1]), survived[:, :-1]], 1) * supervised
    return survived.sum(0), reached.sum(0)


def conditional_acceptance(accepted: Tensor, supervised: Tensor) -> Tensor:
    """Mean [gamma] of slot k's chance to be accepted, each block weighing as much as it survives up to k.

    Arguments as of `survival`.
    """
    survived, reached = survival(accepted, supervised)
    return survived / reached
