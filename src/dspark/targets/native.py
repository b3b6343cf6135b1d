"""The native decoder: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 in one forward. Shapes as in `types`, B sequences."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark.errors import CompatibilityError, ConfigError
from dspark.nn.compiled.linear import CompiledKernel, CompiledLinear
from dspark.nn.compiled.rows import Rows, next_rows
from dspark.nn.compiled.stack import CompiledStack, StackShape
from dspark.nn.device import CPU
from dspark.nn.linear import LinearKernel
from dspark.nn.paged_attention import PagedAttention, PagedLayers, choose_attention
from dspark.nn.pages import PagedCache, PagePool, one_pool, pages_for
from dspark.nn.ragged_batch import RaggedBatch
from dspark.nn.rope import Rotary
from dspark.nn.row_norm import RowNorm
from dspark.targets.attend import Attend, AttendPaged, AttendRagged, AttendWhole
from dspark.targets.config import DecoderConfig
from dspark.targets.decoder_layer import DecoderLayer
from dspark.targets.head_table import HeadTable
from dspark.targets.kv_cache import KVCache
from dspark.types import AFTER_NORM, EMBEDDING, Cache, TargetInfo, TargetOutput


class NativeTarget:
    """A Llama-family decoder that implements `Target`, and a batched stateless pass for training.

    `weights` maps Hugging Face names (with their `model.` prefix) to tensors, whose values the kernel multiplies; they
    are kept for `layer_weights`. `embedding_weight` and `lm_head_weight` [V, d] are float32 or bfloat16 like `dtype`.

    It runs where its weights are. `attention` serves all paged requests of a forward together; None is, on a device,
    what suits that, and on the CPU one request after another.
    """

    def __init__(
        self,
        config: DecoderConfig,
        info: TargetInfo,
        weights: Mapping[str, Tensor],
        kernel: LinearKernel,
        dtype: torch.dtype = torch.float32,
        attention: PagedAttention | None = None,
    ) -> None:
        self.config = config
        self.info = info
        self.kernel = kernel
        self._weights = weights
        self.embedding_weight = weights["model.embed_tokens.weight"].to(dtype)
        self._attention = attention
        if attention is None and self.device != CPU:
            self._attention = choose_attention(self.device, kernel.activation_dtype, config.head_dim)
        tied = config.tie_word_embeddings
        self.lm_head_weight = self.embedding_weight if tied else weights["lm_head.weight"].to(dtype)
        self._head = kernel.pack(self.lm_head_weight)
        self._norm = RowNorm(weights["model.norm.weight"].to(kernel.activation_dtype), config.rms_norm_eps)
        self._rotary = Rotary.scaled(config.head_dim, config.rope)
        self._layers = self._pack_layers()
        self._stack = self._compiled_stack(kernel) if isinstance(kernel, CompiledKernel) else None
        self._no_pages = self.new_pages(0)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and what is computed."""
        return self.embedding_weight.device

    def _pack_layers(self) -> list[DecoderLayer]:
        """Packing a matrix runs on one core and outside the interpreter lock, so layers are packed side by side."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(
                pool.map(
                    lambda layer: DecoderLayer(self.config, self.layer_weights(layer), self.kernel),
                    range(self.config.num_layers),
                )
            )

    def _compiled_stack(self, kernel: CompiledKernel) -> CompiledStack:
        config = self.config
        shape = StackShape(
            config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads, config.head_dim,
            config.rms_norm_eps, kernel.packing,
        )  # fmt: skip
        windows = zip(self._layers, config.windows, strict=True)
        return CompiledStack(shape, [layer.stack_layer(window) for layer, window in windows], self._rotary)

    def layer_weights(self, layer: int) -> dict[str, Tensor]:
        """Weights of decoder layer `layer` by Hugging Face name without prefix, e.g. `self_attn.q_proj.weight`."""
        prefix = f"model.layers.{layer}."
        return {name.removeprefix(prefix): self._weights[name] for name in self._weights if name.startswith(prefix)}

    def new_cache(self, capacity: int) -> KVCache | PagedCache:
        """Empty keys and values for up to `capacity` positions."""
        if self._stack is not None or self._attention is not None:
            return PagedCache.alone(self.new_pages(pages_for(capacity)), capacity)
        config = self.config
        dtype = self.kernel.activation_dtype
        return KVCache(config.num_layers, config.num_kv_heads, capacity, config.head_dim, dtype)

    def new_pages(self, pages: int) -> PagePool:
        """Memory for `pages` pages of keys and values, which the caches of many requests share."""
        if self._stack is not None:
            return self._stack.new_pages(pages)
        config = self.config
        dtype = self.kernel.activation_dtype
        return PagePool(pages, config.num_layers, config.num_kv_heads, config.head_dim, dtype=dtype, device=self.device)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [..., d] of `token_ids` [...]."""
        return F.embedding(token_ids.to(self.device), self.embedding_weight).to(self.kernel.activation_dtype)

    def logits(self, last_hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of states [..., d] after the final norm."""
        return self._head(last_hidden.to(self.kernel.activation_dtype)).float()

    def best_tokens(self, last_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(largest logit, its token), each [N], as `GreedyTarget` has it."""
        if isinstance(self._head, CompiledLinear):
            return self._head.best(last_hidden)
        best, tokens = self.logits(last_hidden).max(dim=-1)
        return best, tokens

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The last layer's output [..., d] as the LM head reads it."""
        return self._norm(hidden.to(self.kernel.activation_dtype))

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        """Append `token_ids` [T] to the request of `cache` and return their states. Raises as `forward_ragged` does."""
        return self.forward_ragged(token_ids, [cache], [len(token_ids)], taps)

    @torch.inference_mode()
    def forward_ragged(
        self, token_ids: Tensor, caches: Sequence[Cache], counts: Sequence[int], taps: Sequence[int] = ()
    ) -> TargetOutput:
        """Append the next `counts[i]` of `token_ids` [N] to `caches[i]`, each another request; states [N, d].

        The matrices are read once for all requests. If a cache refuses, none has changed.

        Raises:
            CapacityError: the tokens do not fit a cache.
            ConfigError: a tap is no layer id, or counts are not those of the tokens.
            CompatibilityError: a cache is not of this target.
        """
        if sum(counts) != len(token_ids) or len(counts) != len(caches):
            raise ConfigError(f"found {len(token_ids)} tokens for {len(caches)} caches, but counts of {list(counts)}")
        own = [self._own(cache) for cache in caches]
        ends = [cache.reserve(count) for cache, count in zip(own, counts, strict=True)]
        paged = [cache for cache in own if isinstance(cache, PagedCache)]
        if self._stack is not None:
            output = self._run_stack(self._stack, token_ids, next_rows(paged, counts), taps)
        elif self._attention is not None and (pool := one_pool(own)) is not None:
            output = self.run_batch(token_ids, pool, RaggedBatch.of(paged, counts, self.device), taps)
        else:
            positions = [torch.arange(c.length, end, device=self.device) for c, end in zip(own, ends, strict=True)]
            attend = AttendRagged(own, counts, self.config.windows, self.kernel.activation_dtype, self.device)
            output = self._run(token_ids, torch.cat(positions), attend, taps)
        for cache, end in zip(own, ends, strict=True):
            cache.length = end
        return output

    def run_batch(
        self, token_ids: Tensor, pool: PagePool, batch: RaggedBatch, taps: Sequence[int] = ()
    ) -> TargetOutput:
        """`forward_ragged` once what it must know is on the device: nothing here looks at a number on the host.

        Raises CompatibilityError for a target that attends one request after another.
        """
        if self._attention is None:
            raise CompatibilityError("this target attends one request after another; give it an attention over pages")
        layers = PagedLayers(pool, batch, self._attention)
        return self._run(token_ids, batch.positions, AttendPaged(layers, self.config.windows), taps)

    def _own(self, cache: Cache) -> KVCache | PagedCache:
        if isinstance(cache, PagedCache) and cache.pool.fits(self._no_pages):
            return cache
        dtype = self.kernel.activation_dtype
        if isinstance(cache, KVCache) and self._stack is None and cache.fits(self.config, dtype):
            return cache
        raise CompatibilityError("this cache belongs to another target; use the one that `new_cache` returned")

    @torch.no_grad()
    def states(self, token_ids: Tensor, lengths: Tensor | None = None, taps: Sequence[int] = ()) -> TargetOutput:
        """States of whole right-padded sequences `token_ids` [B, T]: `last_hidden` [B, T, d], `features` [B, T, m * d].

        Attention is causal, so padding never reaches a real token; with `lengths` [B] the states of padding are zero.
        """
        positions = torch.arange(token_ids.shape[1], device=self.device)
        output = self._run(token_ids, positions, AttendWhole(self.config.windows), taps)
        if lengths is None:
            return output
        real = (positions < lengths.to(self.device).unsqueeze(1)).unsqueeze(-1)
        return TargetOutput(output.last_hidden * real, output.features * real)

    def _run_stack(self, stack: CompiledStack, token_ids: Tensor, rows: Rows, taps: Sequence[int]) -> TargetOutput:
        self.config.check_taps(taps)
        x = self.embed(token_ids)
        layers = list(dict.fromkeys(taps))
        features = x.new_empty(len(x), len(layers), x.shape[-1])
        tapped = {layer: features[:, index] for index, layer in enumerate(layers)}
        if EMBEDDING in tapped:
            tapped.pop(EMBEDDING).copy_(x)
        after_norm = tapped.pop(AFTER_NORM, None)
        x = self._norm(stack.run(x, rows, tapped))
        if after_norm is not None:
            after_norm.copy_(x)
        if len(layers) < len(taps):
            features = features[:, [layers.index(layer) for layer in taps]]
        return TargetOutput(x, features.flatten(1))

    def _run(self, token_ids: Tensor, positions: Tensor, attend: Attend, taps: Sequence[int]) -> TargetOutput:
        self.config.check_taps(taps)
        x = self.embed(token_ids)
        table = HeadTable.build(self.config, self._rotary, positions, x.dtype)
        tapped = {EMBEDDING: x}
        for index, layer in enumerate(self._layers):
            x = layer.finish(x, attend(index, *layer.project(x, table)))
            if index in taps:
                tapped[index] = x
        x = tapped[AFTER_NORM] = self._norm(x)
        features = torch.cat([tapped[layer] for layer in taps], dim=-1) if taps else x.new_empty(*x.shape[:-1], 0)
        return TargetOutput(x, features)
