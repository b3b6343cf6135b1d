"""Matrix products with constant weights: one seam, several packings."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Linear(Protocol):
    """x [..., in] -> [..., out] with constant weights."""

    def __call__(self, x: Tensor) -> Tensor: ...


class LinearKernel(Protocol):
    """A way to store and multiply constant matrices. `activation_dtype` is what its products take and return."""

    name: str
    activation_dtype: torch.dtype

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Store `weight` [out, in] and `bias` [out]."""
        ...


class PlainLinear:
    """An unpacked matrix multiplied by torch; the only one that autograd can pass through."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PlainKernel:
    """torch's own product in one dtype, without packing."""

    name = "plain"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.activation_dtype = dtype

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        dtype = self.activation_dtype
        return PlainLinear(weight.to(dtype), None if bias is None else bias.to(dtype))
