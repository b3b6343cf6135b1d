"""The DFlash backbone: a shallow bidirectional decoder over blocks, fed with target features as context.

Shapes: A blocks, G slots (gamma), T context tokens, d width, m taps. Source: section 3.1 of the paper; slots are
anchor-first, so slot k of a block at position p predicts position p + k + 1.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dspark.core.masks import BlockLayout
from dspark.drafters.attention import Attend, DraftAttention, Rope, attend_cached
from dspark.drafters.block_attention import block_attention
from dspark.drafters.cache import DraftCache
from dspark.drafters.compiled_backbone import CompiledBackbone, compiled_backbone
from dspark.drafters.config import DrafterConfig
from dspark.drafters.convolution import build_convolution
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.hyper_connection import build_residual, merge_streams, split_streams
from dspark.drafters.mlp import MixtureOfExperts, build_mlp
from dspark.errors import CompatibilityError
from dspark.nn.linear import LinearKernel
from dspark.nn.norm import RMSNorm
from dspark.nn.paged_attention import WHOLE, PagedAttention, PagedLayers
from dspark.nn.pages import PagedCache, PagePool, one_pool, pages_for
from dspark.nn.ragged_batch import RaggedBatch
from dspark.nn.rope import Rotary
from dspark.types import Cache


class DraftLayer(nn.Module):
    """One pre-norm layer. Block states are normed before attention; context features enter as they are.

    Each of the two sublayers stands inside its residual, between the sides of its convolution if there is one.
    """

    def __init__(self, config: DrafterConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = build_mlp(config)
        self.attention_conv, self.mlp_conv = build_convolution(config), build_convolution(config)
        self.attention_residual = build_residual(config, site=2 * index)
        self.mlp_residual = build_residual(config, site=2 * index + 1)

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        def attention(states: Tensor) -> Tensor:
            normed = self.input_layernorm(states)
            output: Tensor = self.attention_conv(normed, lambda y: self.self_attn(y, rope, attend))
            return output

        def mlp(states: Tensor) -> Tensor:
            output: Tensor = self.mlp_conv(self.post_attention_layernorm(states), self.mlp)
            return output

        x = self.attention_residual(x, attention)
        output: Tensor = self.mlp_residual(x, mlp)
        return output


class DFlash(DrafterModule):
    """Backbone over blocks embedded by the target's frozen `embedding` [V, d], which is shared and never saved.

    `attention` serves the paged blocks of many requests together; without it they attend one after another.
    """

    def __init__(self, config: DrafterConfig, embedding: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.features_width, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(self.new_layer(index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary.plain(config.head_dim, config.rope_theta)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.compiled: CompiledBackbone | None = None
        self.attention: PagedAttention | None = None

    def new_layer(self, index: int) -> DraftLayer:
        """Layer `index` of the backbone, weights unset."""
        return DraftLayer(self.config, index)

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
        rope, streams = self.rotary.at(positions), self.config.hyper_connections
        if streams is not None:
            x = split_streams(x, streams.streams)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, rope, attend)
        hidden: Tensor = self.norm(x if streams is None else merge_streams(x))
        return hidden

    def after_update(self, over_processes: Callable[[Tensor], Tensor] = lambda own: own) -> None:
        """Let mixtures of experts even out the load that they saw since the last update."""
        for layer in self.draft_layers():
            if isinstance(layer.mlp, MixtureOfExperts):
                layer.mlp.rebalance(over_processes)

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
        layout = BlockLayout.pack(anchors, lengths or (len(features),), gamma, self.config.sliding_window)
        context, rope = self.context(features), self.rotary.at(layout.positions())
        attention = block_attention(layout)
        attends = [attention(layer.self_attn.keys_values(context, rope)) for layer in self.draft_layers()]
        blocks = self.embed_blocks(anchor_ids, layout.gamma)
        return self.run_blocks(blocks, layout.block_positions(), attends)

    def new_cache(self, capacity: int) -> DraftCache | PagedCache:
        """Empty context K/V for up to `capacity` committed positions, and room for a block behind them."""
        block = self.config.block_size
        if self.compiled is not None:
            return PagedCache.alone(self.compiled.new_pages(pages_for(capacity + block)), capacity)
        return DraftCache(self.config, capacity, block, self.norm.weight)

    def new_pages(self, pages: int) -> PagePool:
        """Memory for `pages` pages of context K/V, which the caches of many requests share."""
        if self.compiled is not None:
            return self.compiled.new_pages(pages)
        config, like = self.config, self.norm.weight
        shape = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        return PagePool(pages, *shape, dtype=like.dtype, device=like.device)

    def _own(self, caches: Sequence[Cache]) -> list[DraftCache | PagedCache]:
        """`caches` themselves. Raises CompatibilityError unless they are of this drafter as it stands."""
        like = self.new_pages(0)
        return [self._own_one(cache, like) for cache in caches]

    def _own_one(self, cache: Cache, like: PagePool) -> DraftCache | PagedCache:
        if isinstance(cache, PagedCache) and cache.pool.fits(like):
            return cache
        if self.compiled is not None or isinstance(cache, PagedCache):
            raise CompatibilityError("found a cache of another model, or one opened before this drafter was packed")
        return DraftCache.own(cache, self.config)

    def extend(self, features: Tensor, cache: Cache) -> None:
        """Append the context K/V of the next T positions, from their features [T, m * d]; earlier ones stay."""
        self.extend_ragged(features, [cache], [len(features)])

    @torch.no_grad()
    def extend_ragged(self, features: Tensor, caches: Sequence[Cache], counts: Sequence[int]) -> None:
        """Append the context K/V of the next `counts[i]` positions to `caches[i]`, from features [N, m * d] in order.

        Raises:
            CapacityError: positions do not fit a cache; none has changed then.
            CompatibilityError: a cache is not of this drafter.
        """
        own = self._own(caches)
        if self.compiled is not None:
            self.compiled.extend(features, [cache for cache in own if isinstance(cache, PagedCache)], counts)
            return
        for cache, count in zip(own, counts, strict=True):
            cache.reserve(count)
        if self.attention is not None and (pool := one_pool(own)) is not None:
            self._extend_pages(self.attention, features, pool, own, counts)
            return
        for cache, rows in zip(own, features.split_with_sizes(list(counts)), strict=True):
            self._extend(rows, cache)

    def _extend(self, features: Tensor, cache: DraftCache | PagedCache) -> None:
        end = cache.length + len(features)
        context = self.context(features)
        rope = self.rotary.at(torch.arange(cache.length, end, device=self.device))
        for index, layer in enumerate(self.draft_layers()):
            cache.append(index, *layer.self_attn.keys_values(context, rope))
        cache.length = end

    def _extend_pages(
        self,
        attention: PagedAttention,
        features: Tensor,
        pool: PagePool,
        caches: Sequence[DraftCache | PagedCache],
        counts: Sequence[int],
    ) -> None:
        paged = [cache for cache in caches if isinstance(cache, PagedCache)]
        batch = RaggedBatch.of(paged, counts, self.device)
        pages, context = PagedLayers(pool, batch, attention), self.context(features)
        rope = self.rotary.at(batch.positions)
        for index, layer in enumerate(self.draft_layers()):
            pages.write(index, torch.cat(layer.self_attn.keys_values(context, rope), dim=1))
        for cache, count in zip(caches, counts, strict=True):
            cache.length += count

    @torch.no_grad()
    def blocks_states(self, anchors: Sequence[int], caches: Sequence[Cache], gamma: int) -> Tensor:
        """Hidden states [B, gamma, d] of the blocks whose anchors stand at the positions `length` of their caches."""
        own = self._own(caches)
        blocks = self.embed_blocks(torch.tensor(list(anchors), device=self.device), gamma)
        if self.compiled is not None:
            paged = [cache for cache in own if isinstance(cache, PagedCache)]
            hidden: Tensor = self.norm(self.compiled.blocks(blocks, paged))
            return hidden
        pool = None if self.attention is None or self.config.sliding_window is not None else one_pool(own)
        if pool is None:
            return torch.cat([self._block_states(x[None], cache) for x, cache in zip(blocks, own, strict=True)])
        for cache in own:
            cache.room_for(gamma)
        paged = [cache for cache in own if isinstance(cache, PagedCache)]
        return self.run_batch(blocks, pool, RaggedBatch.of(paged, [gamma] * len(paged), self.device))

    def run_batch(self, blocks: Tensor, pool: PagePool, batch: RaggedBatch) -> Tensor:
        """[B, G, d] of embedded blocks [B, G, d] whose slots are the rows of `batch`, already on the device.

        Raises CompatibilityError for a drafter without `attention`.
        """
        if self.attention is None:
            raise CompatibilityError("this drafter attends one request after another; set its `attention` over pages")
        pages, scale = PagedLayers(pool, batch, self.attention), self.config.head_dim**-0.5

        def attend_in(layer: int) -> Attend:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                pages.write(layer, torch.cat((k, v), dim=2).flatten(0, 1))
                return pages.attend(layer, q.flatten(0, 1), WHOLE, scale).view(q.shape)

            return attend

        attends = [attend_in(layer) for layer in range(len(self.layers))]
        return self.run_blocks(blocks, batch.positions.view(blocks.shape[:2]), attends)

    def _block_states(self, x: Tensor, cache: DraftCache | PagedCache) -> Tensor:
        """[1, G, d] of one embedded block [1, G, d]."""
        length, gamma, window = cache.length, x.shape[1], self.config.sliding_window
        positions = length + torch.arange(gamma, device=self.device)
        first = 0 if window is None else max(0, length - window)
        end = cache.room_for(gamma)
        attends = [attend_cached(*cache.read(layer, first, end), length - first) for layer in range(len(self.layers))]
        return self.run_blocks(x, positions[None], attends)
