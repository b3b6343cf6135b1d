"""Attention of draft blocks over context and own slots, for training (many blocks) and inference (one, cached).

Shapes: A blocks, G slots (gamma), T context tokens, H query heads, K key/value heads, h head width.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dspark.core.masks import BlockLayout, Tile
from dspark.drafters.config import DecoderShape
from dspark.nn.norm import RMSNorm
from dspark.nn.rope import apply_rotary

KeyValue = tuple[Tensor, Tensor]
Rope = tuple[Tensor, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [A, G, H, h], k [A, G, K, h], v [A, G, K, h]) of the blocks -> [A, G, H, h]; knows its layer's context."""

TILE = 32
"""Blocks per training tile: their scores stay in cache, and early anchors skip the context behind them."""


class DraftAttention(nn.Module):
    """Qwen3-style attention on states of `input_width`; k/v projections serve context features and blocks alike."""

    def __init__(self, config: DecoderShape, input_width: int) -> None:
        super().__init__()
        bias, self.head_dim = config.attention_bias, config.head_dim
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(input_width, queries, bias=bias)
        self.k_proj = nn.Linear(input_width, keys, bias=bias)
        self.v_proj = nn.Linear(input_width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, rope: Rope) -> KeyValue:
        """Rotated keys and values, each [..., K, h], of states [..., d]."""
        key = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        return apply_rotary(key, *rope), self.v_proj(x).unflatten(-1, (-1, self.head_dim))

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        """Rotated queries [..., H, h] of states [..., d]."""
        return apply_rotary(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), *rope)

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        output: Tensor = self.o_proj(attend(self.queries(x, rope), *self.keys_values(x, rope)).flatten(-2))
        return output


def attend_tiles(layout: BlockLayout, tiles: Sequence[Tile], context: KeyValue) -> Attend:
    """Training attention of all blocks over `context` ([T, K, h] each), tile by tile.

    Equals softmax attention under `layout.dense()`, without its A^2 keys and without repeating K/V for the query
    groups: queries of a group are further rows of the same product.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([
            _attend_tile(q[t.first : t.last], k[t.first : t.last], v[t.first : t.last], context, t) for t in tiles
        ])  # fmt: skip

    return attend


def _attend_tile(q: Tensor, k: Tensor, v: Tensor, context: KeyValue, tile: Tile) -> Tensor:
    blocks, slots, heads, width = q.shape
    groups = k.shape[2]
    context_k, context_v = (c[tile.start : tile.stop].transpose(0, 1) for c in context)
    rows = (q * width**-0.5).view(blocks, slots, groups, heads // groups, width).permute(2, 0, 1, 3, 4)
    rows = rows.reshape(groups, blocks, -1, width)
    own_k, own_v = k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)

    before = (rows.flatten(1, 2) @ context_k.transpose(1, 2)).view(*rows.shape[:3], tile.stop - tile.start)
    before = before.masked_fill(~tile.visible[:, None], float("-inf"))
    weights = torch.cat((before, rows @ own_k.transpose(2, 3)), dim=-1).softmax(dim=-1)
    over_context, over_own = weights.tensor_split((tile.stop - tile.start,), dim=-1)

    output: Tensor = (over_context.flatten(1, 2) @ context_v).view(rows.shape) + over_own @ own_v
    return output.view(groups, blocks, slots, -1, width).permute(1, 2, 0, 3, 4).reshape(q.shape)


def attend_cached(keys: Tensor, values: Tensor, length: int, causal: bool = False) -> Attend:
    """Inference attention of one block over a layer's cache [K, capacity, h] holding `length` context positions.

    The block's own K/V are written behind the context. Unless `causal`, every slot sees all of them.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slots, heads, width = q.shape[1:]
        groups, end = keys.shape[0], length + slots
        keys[:, length:end] = k[0].transpose(0, 1)
        values[:, length:end] = v[0].transpose(0, 1)
        rows = q[0].view(slots, groups, -1, width).transpose(0, 1).reshape(1, groups, -1, width)
        mask = None
        if causal and slots > 1:
            visible = torch.ones(slots, end, dtype=torch.bool, device=q.device).tril(length)
            mask = visible.repeat_interleave(heads // groups, dim=0)
        output = nn.functional.scaled_dot_product_attention(rows, keys[None, :, :end], values[None, :, :end], mask)
        return output.view(groups, slots, heads // groups, width).transpose(0, 1).reshape(1, slots, heads, width)

    return attend
