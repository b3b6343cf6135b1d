"""Hyper-connections: their equation, the manifold, and a start that is the plain residual yet not symmetric."""

import pytest
import torch

from dspark.drafters.hyper_connection import HyperConnection, merge_streams, sinkhorn, split_streams
from tests.drafters.tiny import tensors

WIDTH, STREAMS, EPS = 6, 3, 1e-6


def connection(fresh: bool = False, site: int = 1) -> HyperConnection:
    module = HyperConnection(WIDTH, STREAMS, 20, EPS, site)
    module.start_as_identity()
    if not fresh:
        with torch.no_grad():
            for seed, parameter in enumerate(module.parameters()):
                parameter.copy_(tensors(*parameter.shape, seed=seed))
    return module


def test_mixing_matrices_are_doubly_stochastic():
    matrices = sinkhorn(tensors(50, 4, 4), 20)
    assert (matrices > 0).all()
    torch.testing.assert_close(matrices.sum(-2), torch.ones(50, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(matrices.sum(-1), torch.ones(50, 4), atol=1e-3, rtol=0)


def test_sinkhorn_leaves_doubly_stochastic_matrices_alone():
    matrix = 0.7 * torch.eye(3) + 0.1
    torch.testing.assert_close(sinkhorn(matrix.log(), 5), matrix)


@torch.no_grad()
def test_it_is_the_equation_for_every_slot():
    module, x = connection(), tensors(5, STREAMS, WIDTH, seed=4)
    n = STREAMS
    for streams, found in zip(x, module(x, torch.tanh), strict=True):
        z = streams.flatten() / (streams.square().mean() + EPS).sqrt()
        raw = module.fn.weight @ z
        pre = torch.sigmoid(module.scale[0] * raw[:n] + module.base[:n])
        post = 2 * torch.sigmoid(module.scale[1] * raw[n : 2 * n] + module.base[n : 2 * n])
        mixing = sinkhorn((module.scale[2] * raw[2 * n :] + module.base[2 * n :]).view(n, n), 20)
        expected = mixing @ streams + post[:, None] * torch.tanh(pre @ streams)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_mixing_keeps_the_mean_and_stretches_nothing():
    module, x = connection(), tensors(5, STREAMS, WIDTH, seed=4)
    mixed = module(x, torch.zeros_like)
    torch.testing.assert_close(merge_streams(mixed), merge_streams(x), atol=1e-5, rtol=1e-4)
    assert (mixed.norm(dim=(1, 2)) <= x.norm(dim=(1, 2)) * (1 + 1e-3)).all()


@torch.no_grad()
@pytest.mark.parametrize("site", range(4))
def test_a_fresh_one_is_the_plain_residual(site):
    x = tensors(5, WIDTH)
    found = connection(fresh=True, site=site)(split_streams(x, STREAMS), torch.tanh)
    torch.testing.assert_close(found, split_streams(x + torch.tanh(x), STREAMS), atol=1e-6, rtol=1e-5)


def test_streams_do_not_stay_alike_when_they_learn():
    """Two sites that read different streams: the first learns to write differently into them."""
    first, second = connection(fresh=True, site=0), connection(fresh=True, site=1)
    x = split_streams(tensors(5, WIDTH), STREAMS)
    merge_streams(second(first(x, torch.tanh), torch.tanh)).square().sum().backward()
    for part in (slice(0, STREAMS), slice(STREAMS, 2 * STREAMS)):
        gradient = first.base.grad[part]
        assert gradient.max() - gradient.min() > 1e-3
    assert first.fn.weight.grad.abs().max() > 0
