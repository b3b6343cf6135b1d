"""DSpark for Gemma4 targets: the same blocks and heads over layers as Gemma4 has them.

Against Qwen3's layers: norms around both halves of a layer (sandwich), GELU, attention without 1 / sqrt(h), values
normed without a scale and, with `attention_k_eq_v`, taken from the keys' projection; embeddings times sqrt(d); base
logits soft-capped before the sequential head adds its bias. Its RMSNorm multiplies by w, not by 1 + w as Gemma 1 to 3.

Shapes: A blocks, G slots (gamma), T context tokens, K key/value heads, h head width, d width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dspark.core.factored_logits import FactoredLogits, soft_capped
from dspark.drafters.attention import Attend, DraftAttention, KeyValue, Rope
from dspark.drafters.backbone import DraftLayer
from dspark.drafters.config import DrafterConfig
from dspark.drafters.dspark import DSpark
from dspark.drafters.mlp import DraftMLP
from dspark.errors import ConfigError
from dspark.nn.linear import LinearKernel
from dspark.nn.norm import RMSNorm, rms_norm
from dspark.nn.rope import apply_rotary


@dataclass(frozen=True, slots=True)
class Gemma4Config(DrafterConfig):
    """A `DrafterConfig` whose sizes are those of the target's full-attention layers, and Gemma4's switches."""

    attention_k_eq_v: bool = False
    final_logit_softcapping: float | None = None

    def __post_init__(self) -> None:
        DrafterConfig.__post_init__(self)
        if not self.is_deepspec:
            raise ConfigError(
                "drafters for Gemma4 have its own layers and DeepSpec's heads: drop candidates, sliding_window, "
                "convolution, experts and hyper_connections, and choose another head than the selector"
            )
        if self.final_logit_softcapping is not None and self.final_logit_softcapping <= 0:
            raise ConfigError(f"final_logit_softcapping is {self.final_logit_softcapping}; expected a positive number")


class Gemma4Attention(DraftAttention):
    """Attention at scale 1 over normed values."""

    v_proj: nn.Linear | None  # type: ignore[assignment]

    def __init__(self, config: Gemma4Config) -> None:
        super().__init__(config, config.hidden_size)
        self.eps = config.rms_norm_eps
        if config.attention_k_eq_v:
            self.v_proj = None

    def keys_values(self, x: Tensor, rope: Rope) -> KeyValue:
        """Rotated keys and values, each [..., K, h], of states [..., d]."""
        keys = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        values = keys if self.v_proj is None else self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        return apply_rotary(self.k_norm(keys), *rope), rms_norm(values, None, self.eps)

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        """Rotated queries; what attends divides them by sqrt(h), which Gemma4 does not."""
        scale: float = self.head_dim**0.5
        return super().queries(x, rope) * scale


class Gemma4MLP(DraftMLP):
    """Gated, with GELU in its tanh form."""

    def forward(self, x: Tensor) -> Tensor:
        gate = nn.functional.gelu(self.gate_proj(x), approximate="tanh")
        output: Tensor = self.down_proj(gate * self.up_proj(x))
        return output


class Gemma4Layer(DraftLayer):
    """One layer with norms before and after attention and MLP. `layer_scalar` [1] scales its output."""

    layer_scalar: Tensor

    def __init__(self, config: Gemma4Config, index: int) -> None:
        super().__init__(config, index)
        self.self_attn = Gemma4Attention(config)
        self.mlp = Gemma4MLP(config.hidden_size, config.intermediate_size)
        self.pre_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rope, attend))
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar


class Gemma4DSpark(DSpark):
    """A DSpark, or without its heads a DFlash, on a Gemma4 target."""

    config: Gemma4Config

    def new_layer(self, index: int) -> Gemma4Layer:
        """A layer as Gemma4 has it."""
        return Gemma4Layer(self.config, index)

    def embed_blocks(self, anchors: Tensor, gamma: int) -> Tensor:
        """Embeddings [A, G, d], scaled by sqrt(d)."""
        scale: float = self.config.hidden_size**0.5
        return super().embed_blocks(anchors, gamma) * scale

    def base_logits(self, hidden: Tensor) -> Tensor:
        """U = c tanh(head(h) / c), [..., V_draft] of hidden states [..., d]."""
        return soft_capped(super().base_logits(hidden), self.config.final_logit_softcapping)

    def factors(self, hidden: Tensor, previous: Tensor, supervised: Tensor) -> FactoredLogits:
        """The same factors under the soft cap."""
        return replace(super().factors(hidden, previous, supervised), soft_cap=self.config.final_logit_softcapping)

    def compile_for(self, kernel: LinearKernel) -> None:
        """Nothing: the compiled calls know Qwen3's layers."""
