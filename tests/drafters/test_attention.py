"""The tiled and the cached attention, against plain attention under the dense mask."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from dspark.core.masks import BlockLayout
from dspark.drafters.attention import attend_cached, attend_tiles
from tests.drafters.tiny import tensors

LAYOUT = BlockLayout.pack(torch.tensor([0, 3, 6, 8, 9, 13]), (7, 9), gamma=3)
WINDOWED = replace(LAYOUT, window=3)


def inputs():
    blocks, context = (6, 3), 16
    q = tensors(*blocks, 4, 8, seed=1)
    k, v = tensors(2, *blocks, 2, 8, seed=2)
    context_k, context_v = tensors(2, context, 2, 8, seed=3)
    return [t.clone().requires_grad_() for t in (q, k, v, context_k, context_v)]


def dense(layout, q, k, v, context_k, context_v):
    keys = torch.cat((context_k, k.flatten(0, 1))).transpose(0, 1)
    values = torch.cat((context_v, v.flatten(0, 1))).transpose(0, 1)
    out = F.scaled_dot_product_attention(
        q.flatten(0, 1).transpose(0, 1)[None], keys[None], values[None], layout.dense(), enable_gqa=True
    )
    return out[0].transpose(0, 1).view(q.shape)


@pytest.mark.parametrize("layout", [LAYOUT, WINDOWED], ids=["whole", "windowed"])
def test_tiles_equal_the_dense_mask_in_value_and_gradient(layout):
    reference, weight = inputs(), tensors(6, 3, 4, 8, seed=4)
    expected = dense(layout, *reference)
    (expected * weight).sum().backward()
    for size in (1, 2, 32):
        tiled = inputs()
        out = attend_tiles(layout, tuple(layout.tiles(size)), (tiled[3], tiled[4]))(*tiled[:3])
        (out * weight).sum().backward()
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
        for ours, theirs in zip(tiled, reference, strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


def test_causal_rows_see_the_cache_and_each_other_backwards():
    q, k, v = tensors(1, 3, 4, 8, seed=1), tensors(1, 3, 2, 8, seed=2), tensors(1, 3, 2, 8, seed=3)
    keys, values = tensors(2, 2, 9, 8, seed=4)
    out = attend_cached(keys, values, 5, causal=True)(q, k, v)
    mask = torch.ones(3, 8, dtype=torch.bool).tril(5)
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys[None, :, :8], values[None, :, :8], mask, enable_gqa=True
    )
    torch.testing.assert_close(out, expected.transpose(1, 2), atol=1e-6, rtol=1e-5)
    assert torch.equal(keys[:, 5:8], k[0].transpose(0, 1))
