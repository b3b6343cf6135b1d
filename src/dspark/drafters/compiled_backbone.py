"""The DFlash backbone in compiled calls, for inference: one for all blocks, one for all layers' context K/V.

Shapes: B blocks, G slots (gamma), N context tokens of all requests, m taps, d width.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark.drafters.mlp import DraftMLP
from dspark.nn.compiled.context import CompiledContext
from dspark.nn.compiled.linear import CompiledKernel, CompiledLinear
from dspark.nn.compiled.rows import block_rows, next_rows
from dspark.nn.compiled.stack import CompiledStack, StackLayer, StackShape
from dspark.nn.linear import LinearKernel
from dspark.nn.norm import RMSNorm
from dspark.nn.pages import PagedCache, PagePool

if TYPE_CHECKING:
    from torch import nn

    from dspark.drafters.backbone import DFlash, DraftLayer


class CompiledBackbone:
    """The constants of a drafter's backbone, copied."""

    def __init__(self, backbone: "DFlash", kernel: CompiledKernel) -> None:
        config, layers = backbone.config, backbone.draft_layers()
        shape = StackShape(
            config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads,
            config.head_dim, config.rms_norm_eps, kernel.packing,
        )  # fmt: skip
        attention = [layer.self_attn for layer in layers]
        self._stack = CompiledStack(shape, [_stack_layer(layer, kernel) for layer in layers], backbone.rotary)
        self._context = CompiledContext(
            shape,
            combine=_side_by_side(kernel, backbone.fc),
            norm=_scale(backbone.hidden_norm),
            keys_values=_side_by_side(kernel, *(linear for a in attention for linear in (a.k_proj, a.v_proj))),
            key_norms=torch.stack([_scale(a.k_norm) for a in attention]),
            rotary=backbone.rotary,
        )

    def new_pages(self, pages: int) -> PagePool:
        """Context keys and values in the layout of the compiled calls."""
        return self._stack.new_pages(pages)

    def blocks(self, x: Tensor, caches: Sequence[PagedCache]) -> Tensor:
        """Output [B, G, d] of the last layer for embedded blocks `x` [B, G, d], each behind its cache's context."""
        width = x.shape[1]
        for cache in caches:
            cache.room_for(width)
        return self._stack.run(x.flatten(0, 1), block_rows(caches, width), block=width).view_as(x)

    def extend(self, features: Tensor, caches: Sequence[PagedCache], counts: Sequence[int]) -> None:
        """Write keys and values of the next `counts[i]` rows of `features` [N, m d] behind `caches[i]`, which grow."""
        ends = [cache.reserve(count) for cache, count in zip(caches, counts, strict=True)]
        self._context.extend(features, next_rows(caches, counts))
        for cache, end in zip(caches, ends, strict=True):
            cache.length = end


def compiled_backbone(backbone: "DFlash", kernel: LinearKernel) -> CompiledBackbone | None:
    """The compiled form of `backbone`, or None if `kernel` is another one or the layers are not plain."""
    if not isinstance(kernel, CompiledKernel) or not backbone.config.has_plain_layers:
        return None
    return CompiledBackbone(backbone, kernel)


def _stack_layer(layer: "DraftLayer", kernel: CompiledKernel) -> StackLayer:
    attention, mlp = layer.self_attn, layer.mlp
    assert isinstance(mlp, DraftMLP)
    return StackLayer(
        input_norm=_scale(layer.input_layernorm),
        qkv=_side_by_side(kernel, attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_scale(attention.q_norm),
        key_norm=_scale(attention.k_norm),
        output=_side_by_side(kernel, attention.o_proj),
        mlp_norm=_scale(layer.post_attention_layernorm),
        gate_up=_side_by_side(kernel, mlp.gate_proj, mlp.up_proj),
        down=_side_by_side(kernel, mlp.down_proj),
    )


def _scale(norm: RMSNorm) -> Tensor:
    return norm.weight.detach().float().contiguous()


def _side_by_side(kernel: CompiledKernel, *linears: "nn.Linear") -> CompiledLinear:
    """One matrix whose output is that of `linears`, in order; all or none of them have a bias."""
    parts = [dict(linear.named_parameters()) for linear in linears]
    bias = torch.cat([part["bias"].detach() for part in parts]) if "bias" in parts[0] else None
    return kernel.pack(torch.cat([part["weight"].detach() for part in parts]), bias)
