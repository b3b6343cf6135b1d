"""DFlash 2's convolution over the slots of a block: each channel mixes a slot with the ones before it.

Shapes: leading axes [...] are blocks; G slots, t taps, d width, d / group groups.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dspark.drafters.config import DrafterConfig

Sublayer = Callable[[Tensor], Tensor]


class BlockConvolution(nn.Module):
    """Grouped dynamic depthwise convolution before and after a sublayer, inside its residual.

    out[i, c] = sum_t (base[t, c] + delta[i, t, group of c]) x[i - t, c], where slots before the block count as 0: taps
    never cross its start. The deltas of both sides are projected from the sublayer's normed input. A fresh one is the
    identity, so that a drafter starts as its DFlash backbone.
    """

    def __init__(self, width: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, width).index_fill_(1, torch.tensor([0]), 1.0))
        self.kernel_projection = nn.Linear(width, 2 * taps * width // group, bias=False)

    @torch.no_grad()
    def start_as_identity(self) -> None:
        """Let no slot have a kernel of its own yet."""
        self.kernel_projection.weight.zero_()

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """finish(sublayer(prepare(x))) of x [..., G, d]."""
        prepare, finish = self.kernels(x).unbind(-3)
        return convolve(sublayer(convolve(x, prepare)), finish)

    def kernels(self, x: Tensor) -> Tensor:
        """[..., G, 2, t, d] of x [..., G, d]; side 0 prepares, side 1 finishes."""
        delta: Tensor = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1))
        return self.base_kernel + delta.repeat_interleave(self.group, dim=-1)


class NoConvolution(nn.Module):
    """The sublayer as it is."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return sublayer(x)


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """sum_t kernel[..., i, t, c] x[..., i - t, c] of x [..., G, d] and kernel [..., G, t, d]; x before slot 0 is 0."""
    slots = x.shape[-2]
    shifted = (nn.functional.pad(x, (0, 0, tap, 0))[..., :slots, :] for tap in range(kernel.shape[-2]))
    return sum((kernel[..., tap, :] * x_before for tap, x_before in enumerate(shifted)), x.new_zeros(()))


def build_convolution(config: DrafterConfig) -> nn.Module:
    """What goes around one sublayer."""
    if config.convolution is None:
        return NoConvolution()
    return BlockConvolution(config.hidden_size, config.convolution.taps, config.convolution.group)
