"""Drafters that draft token by token: one decoder layer run along a chain of its own states.

Row j of the context joins the target's features at position j with the embedding of token j + 1, which the row's
predictions come after. The state of the last row, whose next token is the anchor, predicts the first draft. Each
further draft is one more row, fed with the state before it; such rows are provisional, and once their tokens are
committed they are built again from the target's features.

Shapes: T context tokens, m taps, A anchors, G slots (gamma), d width, K key/value heads, h head width.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dspark.core.factored_logits import FactoredLogits
from dspark.core.masks import BlockLayout
from dspark.drafters.attention import TILE, Attend, DraftAttention, Rope, attend_cached, attend_tiles
from dspark.drafters.cache import DraftCache
from dspark.drafters.config import DecoderShape, DrafterShape
from dspark.drafters.drafter_module import DrafterModule
from dspark.errors import ConfigError
from dspark.nn.norm import RMSNorm
from dspark.nn.rope import Rotary
from dspark.types import EMBEDDING, NOT_RECORDED, Acceptance, Cache, DrafterInfo


class ChainLayer(nn.Module):
    """A decoder layer of rows that join a hidden state and the embedding of the token after it."""

    self_attn: DraftAttention
    post_attention_layernorm: nn.Module
    mlp: nn.Module

    @abstractmethod
    def join(self, hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """(residual [..., d], input of the attention [..., w]) of rows of hidden states and embeddings [..., d]."""

    def keys_values(self, hidden: Tensor, embedded: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, each [..., K, h], of such rows."""
        return self.self_attn.keys_values(self.join(hidden, embedded)[1], rope)

    def forward(self, hidden: Tensor, embedded: Tensor, rope: Rope, attend: Attend) -> Tensor:
        residual, joined = self.join(hidden, embedded)
        residual = residual + self.self_attn(joined, rope, attend)
        output: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return output


class ChainCache(DraftCache):
    """K/V of one request's rows, and what every row reads of the target: `hidden` [capacity, d].

    Of `length` committed positions, the last one's row is open: its next token is the anchor of the round to come.
    """

    def __init__(self, config: DecoderShape, capacity: int, scratch: int, like: Tensor) -> None:
        super().__init__(config, capacity, scratch, like)
        self.hidden = like.new_zeros(capacity, config.hidden_size)

    def write(self, first: int, key: Tensor, value: Tensor) -> None:
        """Keys and values [T, K, h] of the rows from `first` on."""
        rows = slice(first, first + len(key))
        self.keys[0, :, rows], self.values[0, :, rows] = key.transpose(0, 1), value.transpose(0, 1)


class ChainDrafter(DrafterModule):
    """A trainable chain drafter, which is a `Drafter` of the engine too.

    The engine's features start with the target's embedding output, by which the drafter knows a committed row's next
    token; then come those of `shape.target_layer_ids`. States between rows are taken before `norm`.
    """

    def __init__(
        self,
        config: DrafterShape,
        gamma: int,
        layer: ChainLayer,
        embedding: Tensor,
        head: Tensor,
        draft_token_ids: Tensor | None,
        name: str,
        acceptance: Acceptance = NOT_RECORDED,
    ) -> None:
        super().__init__()
        self._shape = config
        self.layers = nn.ModuleList([layer])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary.plain(config.head_dim, config.rope_theta)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.share_head(head, draft_token_ids)
        taps = (EMBEDDING, *config.target_layer_ids)
        self.info = DrafterInfo(name, gamma, taps, config.vocab_size, draft_token_ids, acceptance)

    @abstractmethod
    def inputs(self, features: Tensor) -> Tensor:
        """What rows read [T, d] of the features [T, m * d] of `shape.target_layer_ids`."""

    @property
    def shape(self) -> DrafterShape:
        """The configuration."""
        return self._shape

    @property
    def layer(self) -> ChainLayer:
        """The only layer."""
        layer = self.layers[0]
        assert isinstance(layer, ChainLayer)
        return layer

    @property
    def dtype(self) -> torch.dtype:
        """What states are computed in."""
        return self.norm.weight.dtype

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., d] of target ids [...]."""
        return F.embedding(tokens, self.embedding).to(self.dtype)

    def forced_states(
        self,
        features: Tensor,
        token_ids: Tensor,
        anchors: Tensor,
        previous: Tensor,
        lengths: Sequence[int] | None = None,
    ) -> Tensor:
        """Hidden states [A, G, d] after the final norm, of G rows in a chain per anchor (training-time test).

        Equals drafting `previous[:, 1:]` after every anchor with the engine. Raises ConfigError for an anchor that
        has no token before it in its document.
        """
        layout = BlockLayout.pack(anchors, lengths or (len(token_ids),), previous.shape[1])
        positions = layout.block_positions() - 1
        if bool((positions[:, :1] < 0).any()):
            raise ConfigError("a chain starts from the features before its anchor; anchor no document's first token")
        hidden = self.inputs(features.to(self.dtype))
        following = self.embed(token_ids.roll(-1))  # wrong for a document's last token, whose row nothing can see
        context = self.layer.keys_values(hidden, following, self.rotary.at(layout.positions()))
        tiles = attend_tiles(layout, tuple(layout.tiles(TILE)), context)
        state, chain, states = hidden[anchors - 1][:, None], _Chain(tiles), []
        for slot in range(layout.gamma):
            this = slice(slot, slot + 1)
            state = self.layer(state, self.embed(previous[:, this]), self.rotary.at(positions[:, this]), chain.attend)
            states.append(state)
        normed: Tensor = self.norm(torch.cat(states, dim=1))
        return normed

    def factors(self, hidden: Tensor, previous: Tensor, supervised: Tensor) -> FactoredLogits:
        """The head's product alone."""
        return FactoredLogits(hidden[supervised], self.head)

    def draft_logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The head's product alone; the tokens before are in `hidden` already."""
        return self.base_logits(hidden)

    def new_cache(self, capacity: int) -> ChainCache:
        """Empty rows for up to `capacity` committed positions."""
        return ChainCache(self.shape, capacity, self.info.gamma, self.norm.weight)

    @torch.no_grad()
    def extend(self, features: Tensor, cache: Cache) -> None:
        """Append T committed positions from the engine's features; the row before them, now closed, is built again."""
        own = self._own(cache)
        width = self.shape.hidden_size
        features = features.to(self.dtype)
        following, first, end = features[:, :width], max(own.length - 1, 0), own.reserve(len(features)).stop
        own.hidden[own.length : end] = self.inputs(features[:, width:])
        if own.length == 0:
            following = following[1:]
        if len(following):
            rope = self.rotary.at(torch.arange(first, end - 1, device=self.device))
            own.write(first, *self.layer.keys_values(own.hidden[first : end - 1], following, rope))
        own.length = end

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> "ChainBlock":
        """Close the last row with the anchor and start a chain behind it.

        Raises ConfigError when `gamma` is not in [1, info.gamma], or without any context.
        """
        own = self._own(cache)
        if gamma is not None and not 1 <= gamma <= self.info.gamma:
            raise ConfigError(f"gamma {gamma} is outside [1, {self.info.gamma}], the drafts of one round")
        if own.length == 0:
            raise ConfigError("a chain starts from the features before its anchor, but there is no context yet")
        return ChainBlock(self, anchor, own)

    @torch.no_grad()
    def row(self, hidden: Tensor, token: int, cache: ChainCache, position: int) -> Tensor:
        """State [1, d] of the row at `position` from hidden [1, d] and the token after it; its K/V are written."""
        place = torch.tensor([position], device=self.device)
        attend = attend_cached(cache.keys[0], cache.values[0], position)
        embedded = self.embed(torch.tensor([token], device=self.device))
        state: Tensor = self.layer(hidden[None], embedded[None], self.rotary.at(place), attend)[0]
        return state

    def _own(self, cache: Cache) -> ChainCache:
        own = ChainCache.own(cache, self.shape)
        assert isinstance(own, ChainCache)
        return own


class _Chain:
    """Training attention of chains, row after row: the context of each anchor, and its chain's rows so far.

    The first row belongs to the context, so its keys and values are there already.
    """

    def __init__(self, over_context: Attend) -> None:
        self._over_context = over_context
        self._keys_values: tuple[Tensor, Tensor] | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one row [A, 1, H, h] of every chain."""
        if self._keys_values is None:
            self._keys_values = k[:, :0], v[:, :0]
        else:
            keys, values = self._keys_values
            self._keys_values = torch.cat((keys, k), dim=1), torch.cat((values, v), dim=1)
        return self._over_context(q, *self._keys_values)


class ChainBlock:
    """One chain being drafted: `step(previous)` takes the anchor, then each token as drawn. `state` [1, d] is kept."""

    def __init__(self, drafter: ChainDrafter, anchor: int, cache: ChainCache) -> None:
        self._drafter, self._cache = drafter, cache
        self._position = cache.length - 1
        self._slot = 0
        self.state = drafter.row(cache.hidden[self._position][None], anchor, cache, self._position)

    @torch.no_grad()
    def step(self, previous: int) -> tuple[Tensor, float | None]:
        """(float32 logits [V_draft] of the next slot, no confidence)."""
        if self._slot:
            self.state = self._drafter.row(self.state, previous, self._cache, self._position + self._slot)
        self._slot += 1
        return self._drafter.base_logits(self._drafter.norm(self.state))[0].float(), None
