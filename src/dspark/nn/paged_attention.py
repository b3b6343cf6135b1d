"""Attention of ragged rows over keys and values in pages: the same metadata for a GPU's kernel and for plain torch.

Shapes: N rows of B requests, H query heads, K key/value heads, h head width, P pages of the pool.
"""

import importlib.util
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark.errors import DependencyError
from dspark.nn.pages import PAGE, PagePool
from dspark.nn.ragged_batch import RaggedBatch

WHOLE = (-1, -1)
"""Every row of a request sees all of its positions: a block being drafted."""

CAUSAL = (-1, 0)
"""Every row sees itself and the positions before it."""

Window = tuple[int, int]
"""How many positions a row sees before and behind its own; -1 is all."""

_KERNELS = {9: ("FA3", "flash_attn_interface"), 10: ("FA4", "flash_attn.cute")}
"""By major compute capability: what torch can put behind `varlen_attn` that reads pages, and the package it needs."""

_WIDEST_HEAD = 256


def causal(window: int | None) -> Window:
    """Rows that see themselves and the `window` - 1 positions before, or all of those."""
    return CAUSAL if window is None else (window - 1, 0)


class PagedAttention(Protocol):
    """`query` [N, H, h] on `keys`, `values` [P, PAGE, K, h] of a layer -> [N, H, h], softmax of `scale` times scores.

    The rows' own keys and values stand in their pages already. A request's last row is at its last position.
    """

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, batch: RaggedBatch, window: Window, scale: float
    ) -> Tensor: ...


def flash_attention(
    query: Tensor, keys: Tensor, values: Tensor, batch: RaggedBatch, window: Window, scale: float
) -> Tensor:
    """torch's `varlen_attn` on block tables. One split: a row's bits do not depend on the requests beside it."""
    from torch.nn.attention.varlen import varlen_attn

    output = varlen_attn(
        query, keys, values, batch.starts, None, batch.most_rows, batch.most_used, scale=scale, window_size=window,
        enable_gqa=True, seqused_k=batch.used, block_table=batch.tables, num_splits=1,
    )  # fmt: skip
    assert isinstance(output, Tensor)
    return output


def gathered_attention(
    query: Tensor, keys: Tensor, values: Tensor, batch: RaggedBatch, window: Window, scale: float
) -> Tensor:
    """Plain torch on any device and dtype: copies the pages, pads requests to the longest, and waits for nothing."""
    owners, rows = batch.owners(), torch.arange(len(query), device=query.device)
    slots = rows - batch.starts[owners]
    padded = query.new_zeros(len(batch.used), batch.most_rows, *query.shape[1:])
    padded[owners, slots] = query
    key, value = (pages[batch.tables].flatten(1, 2).transpose(1, 2) for pages in (keys, values))
    mask = _visible(batch, window)[:, None]
    output = F.scaled_dot_product_attention(padded.transpose(1, 2), key, value, mask, scale=scale, enable_gqa=True)
    return output.transpose(1, 2)[owners, slots]


def _visible(batch: RaggedBatch, window: Window) -> Tensor:
    """[B, most rows, M * PAGE]: which of its request's positions each row sees. Padding sees the first one."""
    device, (before, behind) = batch.data.device, window
    keys = torch.arange(batch.tables.shape[1] * PAGE, device=device)
    used, counts = batch.used[:, None, None], batch.starts.diff()[:, None, None]
    queries = used - counts + torch.arange(batch.most_rows, device=device)[:, None]
    visible = keys < used
    if before >= 0:
        visible = visible & (keys >= queries - before)
    if behind >= 0:
        visible = visible & (keys <= queries + behind)
    padding = queries >= used
    return torch.where(padding, keys == 0, visible)


def reads_pages(device: torch.device, dtype: torch.dtype, head_width: int) -> str | None:
    """The kernel behind `varlen_attn` that reads pages on `device`; None if there is none for such numbers.

    torch's own flash attention refuses block tables: FA3 (Hopper) and FA4 (Blackwell) come in packages of their own.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or head_width > _WIDEST_HEAD:
        return None
    name, package = _KERNELS.get(torch.cuda.get_device_capability(device)[0], (None, ""))
    return name if name is not None and _installed(package) else None


def choose_attention(device: torch.device, dtype: torch.dtype, head_width: int) -> PagedAttention:
    """What attends on `device`: `flash_attention` where a kernel reads pages, else plain torch.

    The kernel takes the place of torch's own flash attention in the whole process.

    Raises:
        DependencyError: a kernel is installed that torch cannot use.
    """
    kernel = reads_pages(device, dtype, head_width)
    if kernel is None:
        return gathered_attention
    from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl

    if current_flash_attention_impl() == kernel:
        return flash_attention
    try:
        activate_flash_attention_impl(kernel)
    except (ImportError, RuntimeError, ValueError) as error:
        raise DependencyError(
            f"{kernel} is installed, but torch {torch.__version__} cannot use it ({error}); install a build for this "
            "torch, or remove it: pages are then read by plain torch, slower"
        ) from error
    return flash_attention


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


class PagedLayers:
    """Attention of one step over `pool`, layer by layer: writes the rows' keys and values, then attends."""

    def __init__(self, pool: PagePool, batch: RaggedBatch, attention: PagedAttention) -> None:
        self._pool, self._batch, self._attention = pool, batch, attention
        self._places = batch.places()

    def write(self, layer: int, rows: Tensor) -> None:
        """Store keys before values `rows` [N, 2K, h]."""
        self._pool.scatter(layer, *self._places, rows)

    def attend(self, layer: int, query: Tensor, window: Window, scale: float) -> Tensor:
        """[N, H, h] of `query` [N, H, h] on what the pages hold."""
        return self._attention(query, *self._pool.cells(layer), self._batch, window, scale)
