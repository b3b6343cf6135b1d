"""Eagle3, inference only: the autoregressive baseline that DeepSpec trains beside DSpark.

Row j of the context joins the target's features at position j with the embedding of token j + 1; the state of the last
row predicts the token after the anchor, and every further draft is one more row fed with the previous row's state.
Shapes: T tokens, d width, m taps, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspark.drafters.attention import Attend, DraftAttention, Rope, attend_cached
from dspark.drafters.backbone import DraftMLP
from dspark.drafters.cache import DraftCache
from dspark.drafters.config import check_decoder_shape, check_target_layers
from dspark.errors import ConfigError
from dspark.nn.norm import RMSNorm
from dspark.nn.rope import Rotary


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Sizes of an Eagle3 drafter, named as in DeepSpec's config.json; `ttt_length` is the drafts of one round.

    Raises ConfigError for more than one layer, and for taps outside [0, N - 2].
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    ttt_length: int = 7
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    attention_bias: bool = False

    def __post_init__(self) -> None:
        check_decoder_shape(self)
        check_target_layers(self.target_layer_ids, self.num_target_layers)
        if self.target_layer_ids[0] < 0:
            raise ConfigError("Eagle3 does not read the embedding: target_layer_ids start at 0, found -1")
        if self.num_hidden_layers != 1 or self.ttt_length < 1:
            found = f"{self.num_hidden_layers} and {self.ttt_length}"
            raise ConfigError(
                f"num_hidden_layers and ttt_length are {found}; Eagle3 has one layer and drafts at least 1"
            )


class Eagle3Layer(nn.Module):
    """A decoder layer on [normed embedding ; normed hidden], whose residual is the hidden state as it came."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DraftMLP(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, embedded: Tensor, rope: Rope, attend: Attend) -> Tensor:
        joined = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(joined, rope, attend)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Eagle3(nn.Module):
    """The drafter; `embedding` and `head` [V, d] are the target's. States between rows are taken before `norm`."""

    embedding: Tensor
    head: Tensor

    def __init__(self, config: Eagle3Config, embedding: Tensor, head: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary.plain(config.head_dim, config.rope_theta)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.register_buffer("head", head.detach(), persistent=False)

    def new_cache(self, capacity: int) -> DraftCache:
        """Empty context K/V for up to `capacity` rows."""
        return DraftCache(self.config, capacity, self.config.ttt_length, self.fc.weight)

    @torch.no_grad()
    def extend(self, features: Tensor, next_tokens: Tensor, cache: DraftCache) -> Tensor:
        """States [T, d] of T new context rows, from their features [T, m * d] and the tokens that follow them [T].

        The last of `next_tokens` is the anchor. The rows are kept in `cache`.
        """
        rows = cache.reserve(len(features))
        states = self._rows(self.fc(features.to(self.fc.weight.dtype)), next_tokens, cache, cache.length)
        cache.length = rows.stop
        return states

    def begin(self, state: Tensor, cache: DraftCache) -> "Eagle3Block":
        """Start a round behind the context, whose last row has `state` [d]."""
        return Eagle3Block(self, state, cache)

    def logits(self, state: Tensor) -> Tensor:
        """Float32 draft logits [..., V] of states [..., d]."""
        return nn.functional.linear(self.norm(state), self.head).float()

    def _rows(self, hidden: Tensor, tokens: Tensor, cache: DraftCache, start: int) -> Tensor:
        rope = self.rotary.at(torch.arange(start, start + len(tokens), device=hidden.device))
        attend = attend_cached(cache.keys[0], cache.values[0], start, causal=True)
        embedded = nn.functional.embedding(tokens, self.embedding)
        states: Tensor = self.layers[0](hidden[None], embedded[None], rope, attend)[0]
        return states


class Eagle3Block:
    """One chain being drafted: `step(previous)` takes the anchor, then each token as drawn."""

    def __init__(self, drafter: Eagle3, state: Tensor, cache: DraftCache) -> None:
        self._drafter, self._cache, self._state = drafter, cache, state
        self._slot = 0

    @torch.no_grad()
    def step(self, previous: int) -> tuple[Tensor, float | None]:
        """(logits [V] of the next slot, no confidence). The anchor is already part of the last context row."""
        if self._slot:
            token = torch.tensor([previous], device=self._state.device)
            row = self._cache.length + self._slot - 1
            self._state = self._drafter._rows(self._state[None], token, self._cache, row)[0]
        self._slot += 1
        return self._drafter.logits(self._state), None
