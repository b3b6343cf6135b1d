"""Causal attention with grouped key/value heads. H query heads, K key/value heads, h head width, G = H / K.

Queries come scaled by h^(-1/2). Results have their heads side by side: [..., H * h].
"""

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 16
"""Up to this many new tokens, the G query heads of a group are stacked into one product with their shared keys."""


def causal_attention(query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
    """Attention of whole sequences: `query` [B, T, H, h] on `key`, `value` [B, T, K, h] -> [B, T, H * h].

    Token i sees tokens max(0, i - window + 1) ... i, so right padding never reaches a real token.
    """
    length = query.shape[1]
    mask = None if window is None or window >= length else window_mask(0, length, window, query.device)
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    out = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, scale=1.0, enable_gqa=True)
    return out.transpose(1, 2).flatten(-2)


def cached_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of T new tokens on S cached ones (themselves included) -> [T, H * h].

    `query` [T, H, h]; `key`, `value` [K, S, h]; `mask` [T, S] is added to the scores, None sees everything.
    """
    tokens, heads, width = query.shape
    if tokens == 1 and mask is None:
        scores = torch.bmm(query.view(len(key), -1, width), key.transpose(1, 2))
        return torch.bmm(scores.softmax(-1), value).view(1, heads * width)
    if tokens <= FEW_ROWS:
        return _stacked_attention(query, key, value, mask)
    query, key, value = query.transpose(0, 1).unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    out = F.scaled_dot_product_attention(query, key, value, mask, scale=1.0, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1).flatten(-2)


def _stacked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Rows (g, t) of one product per key/value head: few tokens alone would make it a thin one."""
    tokens, heads, width = query.shape
    groups = heads // len(key)
    stacked = query.view(tokens, len(key), groups, width).permute(1, 2, 0, 3).reshape(1, -1, groups * tokens, width)
    stacked_mask = None if mask is None else mask.repeat(groups, 1)
    out = F.scaled_dot_product_attention(stacked, key.unsqueeze(0), value.unsqueeze(0), stacked_mask, scale=1.0)
    return out.view(-1, groups, tokens, width).permute(2, 0, 1, 3).reshape(tokens, heads * width)


def window_mask(past: int, tokens: int, window: int | None = None, device: torch.device | None = None) -> Tensor:
    """[T, past + T], true where token past + i may look: not ahead, and at most `window` positions back."""
    query = torch.arange(past, past + tokens, device=device).unsqueeze(1)
    key = torch.arange(past + tokens, device=device).unsqueeze(0)
    allowed = key <= query
    return allowed if window is None else allowed & (key > query - window)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the boolean `mask` is true, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
