"""One decoder layer of the Llama family."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark.nn.compiled.linear import CompiledLinear
from dspark.nn.compiled.stack import StackLayer
from dspark.nn.linear import Linear, LinearKernel
from dspark.nn.row_norm import RowNorm
from dspark.targets.config import DecoderConfig
from dspark.targets.head_table import HeadTable


class DecoderLayer:
    """Weights of one layer, by Hugging Face names; q/k/v and gate/up are each one matrix product."""

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Tensor], kernel: LinearKernel) -> None:
        def norm(name: str) -> RowNorm:
            return RowNorm(weights[f"{name}.weight"].to(kernel.activation_dtype), config.rms_norm_eps)

        self._heads = (config.num_heads, config.num_kv_heads)
        self._head_dim = config.head_dim
        self._input_norm = norm("input_layernorm")
        self._mlp_norm = norm("post_attention_layernorm")
        self._query_norm = norm("self_attn.q_norm") if config.qk_norm else None
        self._key_norm = norm("self_attn.k_norm") if config.qk_norm else None
        self._qkv = _fuse(weights, kernel, *(f"self_attn.{name}_proj" for name in "qkv"))
        self._output = _fuse(weights, kernel, "self_attn.o_proj")
        self._gate_up = _fuse(weights, kernel, "mlp.gate_proj", "mlp.up_proj")
        self._down = _fuse(weights, kernel, "mlp.down_proj")

    def stack_layer(self, window: int | None) -> StackLayer:
        """The same weights for a compiled stack, which only the compiled kernel's packing serves."""
        products = (self._qkv, self._output, self._gate_up, self._down)
        qkv, output, gate_up, down = (p for p in products if isinstance(p, CompiledLinear))
        return StackLayer(
            self._input_norm.weight, qkv, _weight(self._query_norm), _weight(self._key_norm), output,
            self._mlp_norm.weight, gate_up, down, window,
        )  # fmt: skip

    def project(self, x: Tensor, table: HeadTable) -> tuple[Tensor, Tensor]:
        """Scaled queries [..., T, H, h], and keys before values [..., T, 2K, h], of states [..., T, d]."""
        heads, kv_heads = self._heads
        projected = self._qkv(self._input_norm(x)).view(*x.shape[:-1], heads + 2 * kv_heads, self._head_dim)
        if self._query_norm is not None and self._key_norm is not None:
            query, key, value = projected.split_with_sizes((heads, kv_heads, kv_heads), dim=-2)
            projected = torch.cat((self._query_norm(query), self._key_norm(key), value), dim=-2)
        query, key_value = table.apply(projected).split_with_sizes((heads, 2 * kv_heads), dim=-2)
        return query, key_value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection, MLP and both residuals: states [..., T, d] and attention output [..., T, H * h]."""
        x = self._output(attended).add_(x)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, dim=-1)
        return self._down(F.silu(gate).mul_(up)).add_(x)


def _weight(norm: RowNorm | None) -> Tensor | None:
    return None if norm is None else norm.weight


def _fuse(weights: Mapping[str, Tensor], kernel: LinearKernel, *names: str) -> Linear:
    """One linear layer whose output is that of `names`, in order."""
    biases = [weights[f"{name}.bias"] for name in names if f"{name}.bias" in weights]
    return kernel.pack(torch.cat([weights[f"{name}.weight"] for name in names]), torch.cat(biases) if biases else None)
