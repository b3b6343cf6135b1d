"""Which kernel runs the training attention of all blocks: tiles on a CPU, FlexAttention elsewhere.

Both follow the one mask definition of `core.masks`. FlexAttention has no backward pass on a CPU, where its forward pass
serves as a test of the block mask alone. No GPU has run the other branch yet.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from dspark.core.masks import BlockLayout
from dspark.drafters.attention import TILE, Attend, KeyValue, attend_tiles

FLEX_BLOCK = 128
"""Rows and columns of FlexAttention's mask that are skipped or computed together: its kernels' default."""


def block_attention(layout: BlockLayout) -> Callable[[KeyValue], Attend]:
    """Attention of the blocks of `layout` over a layer's context keys and values, on the device of its anchors.

    What depends on the layout alone is made once for all layers.
    """
    if layout.anchors.device.type == "cpu":
        tiles = tuple(layout.tiles(TILE))
        return lambda context: attend_tiles(layout, tiles, context)
    mask = flex_mask(layout)
    return lambda context: attend_flex(mask, context, _compiled_flex_attention())


def flex_mask(layout: BlockLayout, block: int = FLEX_BLOCK) -> BlockMask:
    """FlexAttention's mask [A * gamma, T + A * gamma] of `layout`: which squares of `block` x `block` it may skip."""
    slots = len(layout.anchors) * layout.gamma
    keys = sum(layout.lengths) + slots
    device = str(layout.anchors.device)
    return create_block_mask(layout.mask_mod(), None, None, slots, keys, device=device, BLOCK_SIZE=block)


def attend_flex(mask: BlockMask, context: KeyValue, attention: Callable[..., Any] = flex_attention) -> Attend:
    """Training attention of all blocks over `context` ([T, K, h] each) in one call of `attention`."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (
            torch.cat((over, own.flatten(0, 1))).transpose(0, 1)[None]
            for over, own in zip(context, (k, v), strict=True)
        )
        # Autocast leaves rotated states in float32 and values in bfloat16; FlexAttention wants one type.
        query = q.flatten(0, 1).transpose(0, 1)[None].to(values.dtype)
        output: Tensor = attention(query, keys.to(values.dtype), values, block_mask=mask, enable_gqa=True)
        return output[0].transpose(0, 1).reshape(q.shape)

    return attend


@cache
def _compiled_flex_attention() -> Callable[..., Any]:
    """Uncompiled, FlexAttention would form the whole matrix of scores."""
    return torch.compile(flex_attention)
