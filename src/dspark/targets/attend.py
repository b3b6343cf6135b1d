"""How one forward's queries reach keys: the part that differs between decoding and whole sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dspark.nn.attention import additive, cached_attention, causal_attention, window_mask
from dspark.nn.device import CPU
from dspark.nn.paged_attention import PagedLayers, causal
from dspark.targets.kv_cache import LayerCache


class Attend(Protocol):
    """Attention of one layer: scaled queries [..., T, H, h], keys before values [..., T, 2K, h] -> [..., T, H * h]."""

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor: ...


class AttendWhole:
    """Every sequence of a batch looks at itself, causally; nothing is kept."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        self._windows = windows

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        key, value = key_value.chunk(2, dim=-2)
        return causal_attention(query, key, value, self._windows[layer])


@dataclass(frozen=True, slots=True)
class _View:
    """What one forward sees through one window: cached positions from `start` on, and which token sees which."""

    start: int
    mask: Tensor | None
    only_itself: bool


class AttendCached:
    """`tokens` new positions of one request look at its cache, where their keys and values are written first.

    A layer with a sliding window reads only the cached positions inside it.
    """

    def __init__(
        self,
        cache: LayerCache,
        tokens: int,
        windows: Sequence[int | None],
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        self._cache = cache
        self._dtype, self._device = dtype, device
        self._past = cache.length
        self._end = cache.reserve(tokens)
        views = {window: self._view(tokens, window) for window in set(windows)}
        self._views = [views[window] for window in windows]

    def _view(self, tokens: int, window: int | None) -> _View:
        start = 0 if window is None else max(0, self._past - window + 1)
        only_itself = self._past == 0 and (window is None or tokens <= window)
        if tokens == 1 or only_itself:
            return _View(start, None, only_itself)
        visible = window_mask(self._past, tokens, window, self._device)
        return _View(start, additive(visible[:, start:], self._dtype), False)

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        cache, view = self._cache, self._views[layer]
        cache.write(layer, self._past, key_value)
        if view.only_itself:
            key, value = key_value.unsqueeze(0).chunk(2, dim=-2)
            return causal_attention(query.unsqueeze(0), key, value).squeeze(0)
        key, value = cache.read(layer, view.start, self._end)
        return cached_attention(query, key, value, view.mask)


class AttendRagged:
    """The next `counts[i]` rows of a forward are new positions of `caches[i]`: they look at it and at no other."""

    def __init__(
        self,
        caches: Sequence[LayerCache],
        counts: Sequence[int],
        windows: Sequence[int | None],
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        asked = [(cache, count) for cache, count in zip(caches, counts, strict=True) if count]
        self._counts = [count for _, count in asked]
        self._attends = [AttendCached(cache, count, windows, dtype, device) for cache, count in asked]

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        if len(self._attends) == 1:
            return self._attends[0](layer, query, key_value)
        rows = zip(
            self._attends, query.split_with_sizes(self._counts), key_value.split_with_sizes(self._counts), strict=True
        )
        return torch.cat([attend(layer, q, kv) for attend, q, kv in rows])


class AttendPaged:
    """All requests of a forward in one call, on metadata that is on the device."""

    def __init__(self, layers: PagedLayers, windows: Sequence[int | None]) -> None:
        self._layers = layers
        self._windows = [causal(window) for window in windows]

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        self._layers.write(layer, key_value)
        return self._layers.attend(layer, query, self._windows[layer], 1.0).flatten(-2)
