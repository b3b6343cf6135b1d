"""How one forward's queries reach keys: the part that differs between decoding and whole sequences."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dspark.nn.attention import additive, cached_attention, causal_attention, window_mask
from dspark.targets.kv_cache import KVCache


class Attend(Protocol):
    """Attention of layer `layer`: queries [..., T, H, h], keys and values [..., T, K, h] -> [..., T, H, h]."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor: ...


class AttendWhole:
    """Every sequence of a batch looks at itself, causally; nothing is kept."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        self._windows = windows

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return causal_attention(query, key, value, self._windows[layer])


class AttendCached:
    """`tokens` new positions of one request look at its cache, where their keys and values are written first.

    A layer with a sliding window reads only the cached positions inside it.
    """

    def __init__(self, cache: KVCache, tokens: int, windows: Sequence[int | None]) -> None:
        self._cache = cache
        self._past = cache.length
        self._end = cache.reserve(tokens)
        self._windows = windows
        self._starts = {w: 0 if w is None else max(0, self._past - w + 1) for w in set(windows)}
        self._whole = {w: self._past == 0 and (w is None or tokens <= w) for w in set(windows)}
        self._masks = {w: self._mask(tokens, w) for w in set(windows)}

    def _mask(self, tokens: int, window: int | None) -> Tensor | None:
        if tokens == 1 or self._whole[window]:
            return None
        visible = window_mask(self._past, tokens, window, self._cache.keys.device)
        return additive(visible[:, self._starts[window] :], self._cache.keys.dtype)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[:, self._past : self._end] = key.transpose(0, 1)
        values[:, self._past : self._end] = value.transpose(0, 1)
        window = self._windows[layer]
        if self._whole[window]:
            return causal_attention(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)).squeeze(0)
        seen = slice(self._starts[window], self._end)
        return cached_attention(query, keys[:, seen], values[:, seen], self._masks[window])
