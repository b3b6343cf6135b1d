"""RMSNorm for frozen weights in few operations: a decode step of one row waits for launches, not for numbers."""

import torch
from torch import Tensor
from torch.nn import functional as F


class RowNorm:
    """x / rms(x) * weight over the last axis [d], as the layer norm of [x, -x]: its mean is 0, its variance mean(x^2).

    Three fused operations where `rms_norm` takes eight; results agree to float32 rounding.
    """

    __slots__ = ("_doubled", "_eps", "_width")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._width = len(weight)
        self._doubled = torch.cat((weight, weight))
        self._eps = eps

    @property
    def weight(self) -> Tensor:
        """The scale [d]."""
        return self._doubled[: self._width]

    @property
    def eps(self) -> float:
        """What is added to the mean square."""
        return self._eps

    def __call__(self, x: Tensor) -> Tensor:
        both = F.layer_norm(torch.cat((x, -x), dim=-1), (2 * self._width,), self._doubled, None, self._eps)
        return both[..., : self._width]
