"""How fast each linear kernel multiplies here, on matrices of a small decoder, in about a tenth of a second each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.nn.linear import Linear, LinearKernel

_WIDTH, _HIDDEN = 576, 1536
_MATRICES = 8  # more weights than a cache holds, as in a real decode step
_SWEEPS = 2


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """`seconds` of one product of `tokens` rows with a [1536, 576] matrix; `gigaflops` per second."""

    kernel: str
    dtype: str
    tokens: int
    seconds: float
    gigaflops: float


def time_kernels(
    kernels: Sequence[LinearKernel], token_counts: Sequence[int], clock: Callable[[], float], budget: float = 0.1
) -> tuple[KernelTiming, ...]:
    """Fastest time of every kernel at every token count; `budget` seconds each, packing not counted."""
    return tuple(timing for kernel in kernels for timing in _time_kernel(kernel, token_counts, clock, budget))


def _time_kernel(
    kernel: LinearKernel, token_counts: Sequence[int], clock: Callable[[], float], budget: float
) -> list[KernelTiming]:
    generator = torch.Generator().manual_seed(0)
    layers = [kernel.pack(torch.randn(_HIDDEN, _WIDTH, generator=generator)) for _ in range(_MATRICES)]
    timings = []
    for tokens in token_counts:
        x = torch.randn(tokens, _WIDTH, generator=generator).to(kernel.activation_dtype)
        seconds = _fastest_product(layers, x, clock, budget)
        dtype = str(kernel.activation_dtype).removeprefix("torch.")
        timings.append(KernelTiming(kernel.name, dtype, tokens, seconds, 2e-9 * tokens * _WIDTH * _HIDDEN / seconds))
    return timings


@torch.inference_mode()
def _fastest_product(layers: Sequence[Linear], x: Tensor, clock: Callable[[], float], budget: float) -> float:
    """The shortest product of many: what the kernel can do, whatever else the machine was doing meanwhile."""
    laps: list[float] = []
    end = clock() + budget
    while len(laps) < _SWEEPS * len(layers) or clock() < end:
        for layer in layers:
            start = clock()
            layer(x)
            laps.append(clock() - start)
    return min(laps)
