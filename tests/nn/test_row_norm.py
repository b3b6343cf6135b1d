"""The fast norm is RMSNorm, at every scale that decoders produce."""

import pytest
import torch

from dspark.nn.norm import rms_norm
from dspark.nn.row_norm import RowNorm


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e3])
@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (2, 3, 64)])
def test_it_is_rms_norm(scale, shape):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(shape, generator=generator) * scale, torch.randn(64, generator=generator)
    torch.testing.assert_close(RowNorm(weight, 1e-5)(x), rms_norm(x, weight, 1e-5), atol=1e-5, rtol=1e-5)


def test_a_constant_row_is_not_centred_away():
    assert torch.allclose(RowNorm(torch.ones(8), 0.0)(torch.full((1, 8), 5.0)), torch.ones(1, 8))


def test_one_huge_channel_does_not_drown_the_others():
    """Decoder states have outliers of several thousand in a few channels."""
    x = torch.randn(1, 576, generator=torch.Generator().manual_seed(1))
    x[0, 3] = 8000.0
    expected = (x.double() / (x.double().square().mean() + 1e-5).sqrt()).float()
    torch.testing.assert_close(RowNorm(torch.ones(576), 1e-5)(x), expected, atol=1e-6, rtol=1e-5)
