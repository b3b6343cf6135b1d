"""Root-mean-square normalisation."""

import torch
from torch import Tensor, nn


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis, computed in float32 and returned in the dtype of `x`."""
    scale = None if weight is None else weight.float()
    return nn.functional.rms_norm(x.float(), (x.shape[-1],), scale, eps).to(x.dtype)


class RMSNorm(nn.Module):
    """RMSNorm with a learned scale, as Llama and Qwen3 use it."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
