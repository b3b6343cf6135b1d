"""Both attention paths against the definition."""

import pytest
import torch

from dspark.nn.attention import additive, cached_attention, causal_attention, window_mask

HEADS, KV_HEADS, WIDTH = 6, 2, 8


def naive(query, key, value, allowed):
    """Scaled queries [T, H, h] on keys and values [S, K, h], one head at a time in double precision."""
    out = torch.empty(query.shape, dtype=torch.double)
    for head in range(HEADS):
        k, v = (x[:, head // (HEADS // KV_HEADS)].double() for x in (key, value))
        scores = query[:, head].double() @ k.T
        out[:, head] = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
    return out.float().flatten(-2)


def tensors(tokens, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(tokens, HEADS, WIDTH, generator=generator)
    key, value = torch.randn(2, length, KV_HEADS, WIDTH, generator=generator)
    return query, key, value


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize(("past", "tokens"), [(0, 1), (9, 1), (9, 2), (9, 5), (0, 5), (9, 16), (9, 17), (40, 20)])
def test_cached_attention(past, tokens, window):
    query, key, value = tensors(tokens, past + tokens)
    allowed = window_mask(past, tokens, window)
    mask = None if tokens == 1 and window is None else additive(allowed, torch.float32)
    found = cached_attention(query, key.transpose(0, 1), value.transpose(0, 1), mask)
    torch.testing.assert_close(found, naive(query, key, value, allowed), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 4, 12, 99])
def test_causal_attention(window):
    batches = [tensors(12, 12, seed) for seed in (1, 2)]
    query, key, value = (torch.stack(parts) for parts in zip(*batches, strict=True))
    found = causal_attention(query, key, value, window)
    expected = torch.stack([naive(q, k, v, window_mask(0, 12, window)) for q, k, v in batches])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_window_mask_by_hand():
    assert window_mask(2, 3, 2).int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert window_mask(1, 2).int().tolist() == [[1, 1, 0], [1, 1, 1]]
