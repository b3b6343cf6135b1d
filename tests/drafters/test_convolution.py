"""The convolution around a sublayer: its equation, its identity, and that taps stay inside a block."""

import pytest
import torch

from dspark.drafters.convolution import BlockConvolution, convolve
from tests.drafters.tiny import tensors

BLOCKS, SLOTS, WIDTH, TAPS, GROUP = 3, 4, 8, 3, 4


def convolution() -> BlockConvolution:
    module = BlockConvolution(WIDTH, TAPS, GROUP)
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(tensors(*parameter.shape, seed=seed))
    return module


def literal(module: BlockConvolution, source: torch.Tensor, x: torch.Tensor, side: int) -> torch.Tensor:
    """out[i, c] = sum_t (base[t, c] + delta[i, t, g(c)]) x[i - t, c], one number at a time."""
    delta = module.kernel_projection(source).view(BLOCKS, SLOTS, 2, TAPS, WIDTH // GROUP)
    out = torch.zeros_like(x)
    for block in range(BLOCKS):
        for i in range(SLOTS):
            for c in range(WIDTH):
                for t in range(min(TAPS, i + 1)):
                    kernel = module.base_kernel[side, t, c] + delta[block, i, side, t, c // GROUP]
                    out[block, i, c] += kernel * x[block, i - t, c]
    return out


@torch.no_grad()
def test_both_sides_are_the_equation_with_kernels_from_the_input():
    module, x = convolution(), tensors(BLOCKS, SLOTS, WIDTH, seed=9)
    expected = literal(module, x, torch.tanh(literal(module, x, x, 0)), 1)
    torch.testing.assert_close(module(x, torch.tanh), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_fresh_one_is_exactly_its_sublayer():
    module, x = BlockConvolution(WIDTH, TAPS, GROUP), tensors(BLOCKS, SLOTS, WIDTH, seed=9)
    module.start_as_identity()
    assert torch.equal(module(x, torch.tanh), torch.tanh(x))


@torch.no_grad()
@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_slot_moves_itself_and_the_next_taps_of_its_own_block(slot):
    module, x = convolution(), tensors(BLOCKS, SLOTS, WIDTH, seed=9)
    spoiled = x.clone()
    spoiled[1, slot] += 1
    kernel = module.kernels(x)[..., 0, :, :]
    moved = (convolve(spoiled, kernel) - convolve(x, kernel)).abs().amax(-1) > 0
    reached = [slot <= i < slot + TAPS for i in range(SLOTS)]
    assert moved.tolist() == [[False] * SLOTS, reached, [False] * SLOTS]


@torch.no_grad()
def test_a_block_shorter_than_the_taps_is_the_start_of_a_longer_one():
    module, x = convolution(), tensors(BLOCKS, SLOTS, WIDTH, seed=9)
    torch.testing.assert_close(module(x[:, :1], torch.tanh), module(x, torch.tanh)[:, :1])
