"""The DFlash backbone: a shallow bidirectional decoder over blocks, fed with target features as context.

Shapes: A blocks, G slots (gamma), T context tokens, d width, m taps. Source: section 3.1 of the paper; slots are
anchor-first, so slot k of a block at position p predicts position p + k + 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dspark.core.masks import BlockLayout
from dspark.drafters.attention import Attend, DraftAttention, Rope, attend_cached
from dspark.drafters.block_attention import block_attention
from dspark.drafters.cache import DraftCache
from dspark.drafters.compiled_backbone import CompiledBackbone, compiled_backbone
from dspark.drafters.config import DrafterConfig
from dspark.drafters.drafter_module import DrafterModule
from dspark.nn.linear import LinearKernel
from dspark.nn.norm import RMSNorm
from dspark.nn.rope import Rotary
from dspark.types import Cache


class DraftMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class DraftLayer(nn.Module):
    """One pre-norm layer. Block states are normed before attention; context features enter as they are."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DraftMLP(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, attend)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class DFlash(DrafterModule):
    """Backbone over blocks embedded by the target's frozen `embedding` [V, d], which is shared and never saved."""

    def __init__(self, config: DrafterConfig, embedding: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.features_width, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary.plain(config.head_dim, config.rope_theta)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.compiled: CompiledBackbone | None = None

    @property
    def shape(self) -> DrafterConfig:
        """The configuration."""
        return self.config

    @property
    def dtype(self) -> torch.dtype:
        """What states are computed in."""
        return self.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where states live."""
        return self.norm.weight.device

    def compile_for(self, kernel: LinearKernel) -> None:
        """Run blocks and context in compiled calls where `kernel` is a compiled one."""
        self.compiled = compiled_backbone(self, kernel)

    def draft_layers(self) -> list[DraftLayer]:
        """The layers by their type."""
        return [layer for layer in self.layers if isinstance(layer, DraftLayer)]

    def context(self, features: Tensor) -> Tensor:
        """States [T, d] that every layer reads as context, of target features [T, m * d]."""
        states: Tensor = self.hidden_norm(self.fc(features.to(self.dtype)))
        return states

    def embed_blocks(self, anchors: Tensor, gamma: int) -> Tensor:
        """Embeddings [A, G, d] of [anchor, mask x (gamma - 1)] for anchor tokens [A]."""
        tokens = anchors.new_full((len(anchors), gamma), self.config.mask_token_id)
        tokens[:, 0] = anchors
        return nn.functional.embedding(tokens, self.embedding).to(self.dtype)

    def run_blocks(self, x: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
        """Hidden states [A, G, d] after the final norm of embedded blocks at `positions` [A, G]."""
        rope = self.rotary.at(positions)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, rope, attend)
        hidden: Tensor = self.norm(x)
        return hidden

    def training_states(
        self,
        features: Tensor,
        token_ids: Tensor,
        anchors: Tensor,
        lengths: Sequence[int] | None = None,
        gamma: int | None = None,
    ) -> Tensor:
        """Hidden states [A, gamma, d] of all blocks of a step, from features [T, m * d] and ids [T] of the context.

        Documents of `lengths` tokens (default: one) are packed end to end; `anchors` [A] are ascending packed indices.
        `gamma` may be shorter than the configured block.
        """
        return self.anchored_states(features, token_ids[anchors], anchors, lengths, gamma or self.config.block_size)

    def forced_states(
        self,
        features: Tensor,
        token_ids: Tensor,
        anchors: Tensor,
        previous: Tensor,
        lengths: Sequence[int] | None = None,
    ) -> Tensor:
        """Hidden states [A, G, d]; the backbone reads the anchors alone, so forced tokens reach the heads only."""
        return self.anchored_states(features, previous[:, 0], anchors, lengths, previous.shape[1])

    def anchored_states(
        self, features: Tensor, anchor_ids: Tensor, anchors: Tensor, lengths: Sequence[int] | None, gamma: int
    ) -> Tensor:
        """`training_states` for anchors whose token ids [A] are known."""
        layout = BlockLayout.pack(anchors, lengths or (len(features),), gamma)
        context, rope = self.context(features), self.rotary.at(layout.positions())
        attention = block_attention(layout)
        attends = [attention(layer.self_attn.keys_values(context, rope)) for layer in self.draft_layers()]
        blocks = self.embed_blocks(anchor_ids, layout.gamma)
        return self.run_blocks(blocks, layout.block_positions(), attends)

    def new_cache(self, capacity: int) -> DraftCache:
        """Empty context K/V for up to `capacity` committed positions."""
        return DraftCache(self.config, capacity, self.config.block_size, self.norm.weight)

    @torch.no_grad()
    def extend(self, features: Tensor, cache: Cache) -> None:
        """Append the context K/V of the next T positions, from their features [T, m * d]; earlier ones stay."""
        own = DraftCache.own(cache, self.config)
        if self.compiled is not None:
            self.compiled.extend(features, own)
            return
        context = self.context(features)
        rope = self.rotary.at(torch.tensor(own.reserve(len(features)), device=self.device))
        for index, layer in enumerate(self.draft_layers()):
            own.append(index, *layer.self_attn.keys_values(context, rope))
        own.length += len(features)

    @torch.no_grad()
    def block_states(self, anchor: int, cache: DraftCache, gamma: int) -> Tensor:
        """Hidden states [gamma, d] of the block whose anchor stands at position `cache.length`."""
        device = self.device
        blocks = self.embed_blocks(torch.tensor([anchor], device=device), gamma)
        if self.compiled is not None:
            hidden: Tensor = self.norm(self.compiled.block(blocks[0], cache))
            return hidden
        positions = cache.length + torch.arange(gamma, device=device)
        attends = [attend_cached(k, v, cache.length) for k, v in zip(cache.keys, cache.values, strict=True)]
        return self.run_blocks(blocks, positions[None], attends)[0]
