"""The DFlash backbone in compiled calls, for inference: one for a block, one product for all layers' context K/V.

Shapes: G slots (gamma), T context tokens, L layers, K key/value heads, h head width, d width.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark.drafters.cache import DraftCache
from dspark.nn.compiled.linear import CompiledKernel, CompiledLinear
from dspark.nn.compiled.stack import CompiledStack, StackCache, StackLayer, StackShape
from dspark.nn.linear import LinearKernel
from dspark.nn.norm import RMSNorm
from dspark.nn.rope import Rotary, apply_rotary

if TYPE_CHECKING:
    from torch import nn

    from dspark.drafters.backbone import DraftLayer
    from dspark.drafters.config import DrafterConfig


class CompiledBackbone:
    """`layers` of a drafter whose weights are constants; they are copied."""

    def __init__(self, config: "DrafterConfig", layers: "Sequence[DraftLayer]", rotary: Rotary) -> None:
        shape = StackShape(
            config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads,
            config.head_dim, config.rms_norm_eps,
        )  # fmt: skip
        self._stack = CompiledStack(shape, [_stack_layer(layer) for layer in layers], rotary)
        attention = [layer.self_attn for layer in layers]
        self._heads = (len(layers), 2, config.num_key_value_heads, config.head_dim)
        self._keys_values = _side_by_side(*(linear for a in attention for linear in (a.k_proj, a.v_proj)))
        self._key_norms = torch.stack([a.k_norm.weight.detach().float() for a in attention]).unsqueeze(1)
        self._eps = config.rms_norm_eps
        self._rotary = rotary

    def block(self, x: Tensor, cache: DraftCache) -> Tensor:
        """Output [G, d] of the last layer for an embedded block `x` [G, d] behind the context of `cache`."""
        return self._stack.run(x, StackCache(cache.keys, cache.values), cache.length, causal=False)

    def extend(self, context: Tensor, cache: DraftCache) -> None:
        """Write keys and values of `context` [T, d] behind those of `cache`, whose length grows by T."""
        positions = cache.reserve(len(context))
        key, value = self._keys_values(context).view(len(context), *self._heads).unbind(2)
        key = torch.nn.functional.rms_norm(key, key.shape[-1:], None, self._eps) * self._key_norms
        cos, sin = self._rotary.at(torch.arange(positions.start, positions.stop))
        key = apply_rotary(key.flatten(1, 2), cos, sin).view(value.shape)
        for store, rows in ((cache.keys, key), (cache.values, value)):
            store[:, :, positions.start : positions.stop] = rows.permute(1, 2, 0, 3)
        cache.length += len(context)


def compiled_backbone(
    config: "DrafterConfig", layers: "Sequence[DraftLayer]", rotary: Rotary, kernel: LinearKernel
) -> CompiledBackbone | None:
    """The compiled form of `layers`, or None if `kernel` is another one."""
    return CompiledBackbone(config, layers, rotary) if isinstance(kernel, CompiledKernel) else None


def _stack_layer(layer: "DraftLayer") -> StackLayer:
    attention, mlp = layer.self_attn, layer.mlp
    return StackLayer(
        input_norm=_scale(layer.input_layernorm),
        qkv=_side_by_side(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=_scale(attention.q_norm),
        key_norm=_scale(attention.k_norm),
        output=_side_by_side(attention.o_proj),
        mlp_norm=_scale(layer.post_attention_layernorm),
        gate_up=_side_by_side(mlp.gate_proj, mlp.up_proj),
        down=_side_by_side(mlp.down_proj),
    )


def _scale(norm: RMSNorm) -> Tensor:
    return norm.weight.detach().float().contiguous()


def _side_by_side(*linears: "nn.Linear") -> CompiledLinear:
    """One matrix whose output is that of `linears`, in order; all or none of them have a bias."""
    parts = [dict(linear.named_parameters()) for linear in linears]
    bias = torch.cat([part["bias"].detach() for part in parts]) if "bias" in parts[0] else None
    return CompiledLinear(torch.cat([part["weight"].detach() for part in parts]), bias)
