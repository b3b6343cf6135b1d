"""A drafter whose matrices are stored as an inference kernel wants them: the same modules, other products."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from dspark.drafters.drafter_module import DrafterModule
from dspark.nn.linear import Linear, LinearKernel
from dspark.nn.norm import RMSNorm
from dspark.nn.row_norm import RowNorm

D = TypeVar("D", bound=DrafterModule)


class PackedProduct(nn.Module):
    """Stands in for an nn.Linear; its weights are constants."""

    def __init__(self, product: Linear) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class PackedNorm(nn.Module):
    """Stands in for an RMSNorm, in fewer operations."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight.detach()
        self._norm = RowNorm(self.weight, norm.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self._norm(x)


@torch.no_grad()
def pack_drafter(drafter: D, kernel: LinearKernel) -> D:
    """Replace, in place, every matrix of `drafter` by `kernel`'s packing, the LM head included, and its norms.

    Drafts change by rounding at most, which acceptance may feel but losslessness does not. For inference only: the
    drafter's parameters are gone.
    """
    drafter.compile_for(kernel)
    unpacked = set(drafter.unpacked())
    for parent in list(drafter.modules()):
        for name, child in list(parent.named_children()):
            if child in unpacked:
                continue
            if isinstance(child, nn.Linear):
                setattr(parent, name, PackedProduct(kernel.pack(child.weight, child.bias)))
            elif isinstance(child, RMSNorm):
                setattr(parent, name, PackedNorm(child))
    drafter.packed_head = kernel.pack(drafter.head)
    return drafter
