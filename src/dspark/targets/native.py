"""The native decoder: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 in one forward. Shapes as in `types`, B sequences."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark.nn.attention import cached_attention, causal_attention, window_mask
from dspark.nn.linear import Linear, LinearKernel
from dspark.nn.rope import Rotary, apply_rotary
from dspark.targets.config import DecoderConfig
from dspark.targets.kv_cache import KVCache
from dspark.types import Cache, TargetInfo, TargetOutput


class DecoderLayer:
    """Weights of one layer; q/k/v and gate/up are each one matrix."""

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Tensor], kernel: LinearKernel) -> None:
        dtype = kernel.activation_dtype
        self.config = config
        self.input_norm = weights["input_layernorm.weight"].to(dtype)
        self.mlp_norm = weights["post_attention_layernorm.weight"].to(dtype)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = weights["self_attn.q_norm.weight"].to(dtype)
            self.k_norm = weights["self_attn.k_norm.weight"].to(dtype)
        self.qkv = self._fuse(weights, kernel, *(f"self_attn.{name}_proj" for name in "qkv"))
        self.output = self._fuse(weights, kernel, "self_attn.o_proj")
        self.gate_up = self._fuse(weights, kernel, "mlp.gate_proj", "mlp.up_proj")
        self.down = self._fuse(weights, kernel, "mlp.down_proj")

    @staticmethod
    def _fuse(weights: Mapping[str, Tensor], kernel: LinearKernel, *names: str) -> Linear:
        biases = [weights[f"{name}.bias"] for name in names if f"{name}.bias" in weights]
        return kernel.pack(torch.cat([weights[f"{name}.weight"] for name in names]), torch.cat(biases) if biases else None)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [..., T, H, h] and keys, and values [..., T, K, h], of states [..., T, d]."""
        config = self.config
        heads = self.qkv(F.rms_norm(x, (config.hidden_size,), self.input_norm, config.rms_norm_eps))
        heads = heads.unflatten(-1, (-1, config.head_dim))
        query, key, value = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=-2)
        if self.q_norm is not None:
            query = F.rms_norm(query, (config.head_dim,), self.q_norm, config.rms_norm_eps)
            key = F.rms_norm(key, (config.head_dim,), self.k_norm, config.rms_norm_eps)
        return apply_rotary(query, cos, sin), apply_rotary(key, cos, sin), value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection, MLP and both residuals: states [..., T, d], attention output [..., T, H, h]."""
        x = x + self.output(attended.flatten(-2))
        hidden = self.gate_up(F.rms_norm(x, (self.config.hidden_size,), self.mlp_norm, self.config.rms_norm_eps))
        gate, up = hidden.chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class NativeTarget:
    """A Llama-family decoder that implements `Target`, and a batched stateless pass for training.

    `weights` maps Hugging Face names (with their `model.` prefix) to tensors and is kept for `layer_weights`.
    """

    def __init__(
        self, config: DecoderConfig, info: TargetInfo, weights: Mapping[str, Tensor], kernel: LinearKernel
    ) -> None:
        self.config = config
        self.info = info
        self.kernel = kernel
        self._weights = weights
        dtype = kernel.activation_dtype
        self.embedding_weight = weights["model.embed_tokens.weight"].to(dtype)
        tied = config.tie_word_embeddings
        self.lm_head_weight = self.embedding_weight if tied else weights["lm_head.weight"].to(dtype)
        self._head = kernel.pack(self.lm_head_weight)
        self._norm = weights["model.norm.weight"].to(dtype)
        self._rotary = Rotary.scaled(config.head_dim, config.rope)
        self._layers = [DecoderLayer(config, self.layer_weights(i), kernel) for i in range(config.num_layers)]

    def layer_weights(self, layer: int) -> dict[str, Tensor]:
        """Weights of decoder layer `layer` by Hugging Face name without prefix, e.g. `self_attn.q_proj.weight`."""
        prefix = f"model.layers.{layer}."
        return {name.removeprefix(prefix): self._weights[name] for name in self._weights if name.startswith(prefix)}

    def new_cache(self, capacity: int) -> KVCache:
        """Empty keys and values for up to `capacity` positions."""
        config = self.config
        dtype = self.kernel.activation_dtype
        return KVCache(config.num_layers, config.num_kv_heads, capacity, config.head_dim, dtype)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [..., d] of `token_ids` [...]."""
        return F.embedding(token_ids, self.embedding_weight)

    def logits(self, last_hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of states [..., d] after the final norm."""
        return self._head(last_hidden.to(self.kernel.activation_dtype)).float()

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        """Append `token_ids` [T] to the request of `cache` and return their states."""
        assert isinstance(cache, KVCache)
        past, end = cache.length, cache.reserve(len(token_ids))
        cos, sin = self._rotary.at(torch.arange(past, end))
        mask = window_mask(past, end - past) if end - past > 1 else None
        x = self.embed(token_ids)
        tapped = {-1: x}
        for index, layer in enumerate(self._layers):
            query, key, value = layer.project(x, cos, sin)
            keys, values = cache.keys[index], cache.values[index]
            keys[:, past:end] = key.transpose(0, 1)
            values[:, past:end] = value.transpose(0, 1)
            x = layer.finish(x, cached_attention(query, keys[:, :end], values[:, :end], mask))
            tapped[index] = x
        cache.length = end
        return self._output(x, tapped, taps)

    @torch.no_grad()
    def states(self, token_ids: Tensor, lengths: Tensor | None = None, taps: Sequence[int] = ()) -> TargetOutput:
        """States of whole right-padded sequences `token_ids` [B, T]: `last_hidden` [B, T, d], `features` [B, T, m * d].

        Attention is causal, so padding never reaches a real token; with `lengths` [B] the states of padding are zero.
        """
        cos, sin = self._rotary.at(torch.arange(token_ids.shape[1]))
        x = self.embed(token_ids)
        tapped = {-1: x}
        for index, layer in enumerate(self._layers):
            x = layer.finish(x, causal_attention(*layer.project(x, cos, sin), self.config.windows[index]))
            if index in taps:
                tapped[index] = x
        output = self._output(x, tapped, taps)
        if lengths is None:
            return output
        real = (torch.arange(token_ids.shape[1]) < lengths.unsqueeze(1)).unsqueeze(-1)
        return TargetOutput(output.last_hidden * real, output.features * real)

    def _output(self, x: Tensor, tapped: Mapping[int, Tensor], taps: Sequence[int]) -> TargetOutput:
        self.config.check_taps(tuple(taps))
        last = F.rms_norm(x, (self.config.hidden_size,), self._norm, self.config.rms_norm_eps)
        features = torch.cat([tapped[layer] for layer in taps], dim=-1) if taps else x.new_empty(*x.shape[:-1], 0)
        return TargetOutput(last, features)
