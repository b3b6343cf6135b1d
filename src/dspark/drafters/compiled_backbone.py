"""The DFlash backbone in compiled calls, for inference: one for a block, one for all layers' context K/V.

Shapes: G slots (gamma), T context tokens, m taps, d width.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark.drafters.cache import DraftCache
from dspark.drafters.mlp import DraftMLP
from dspark.nn.compiled.context import CompiledContext
from dspark.nn.compiled.linear import CompiledKernel, CompiledLinear
from dspark.nn.compiled.stack import CompiledStack, StackCache, StackLayer, StackShape
from dspark.nn.linear import LinearKernel
from dspark.nn.norm import RMSNorm

if TYPE_CHECKING:
    from torch import nn

    from dspark.drafters.backbone import DFlash, DraftLayer


class CompiledBackbone:
    """The constants of a drafter's backbone, copied."""

    def __init__(self, backbone: "DFlash", kernel: CompiledKernel) -> None:
        config, layers = backbone.config, backbone.draft_layers()
        shape = StackShape(
            config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads,
            config.head_dim, config.rms_norm_eps, kernel.tiles,
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

    def block(self, x: Tensor, cache: DraftCache) -> Tensor:
        """Output [G, d] of the last layer for an embedded block `x` [G, d] behind the context of `cache`."""
        own = StackCache(cache.keys, cache.values)
        return self._stack.run(x, own.places(cache.length, len(x), visible=cache.length + len(x)))

    def extend(self, features: Tensor, cache: DraftCache) -> None:
        """Write keys and values of `features` [T, m d] behind those of `cache`, whose length grows by T."""
        positions = cache.reserve(len(features))
        own = StackCache(cache.keys, cache.values)
        self._context.extend(features, own.places(positions.start, len(positions)))
        cache.length = positions.stop


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
