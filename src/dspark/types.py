"""Nouns that several folders share. Shapes: T tokens of one request, N of B requests, V vocabulary, d width, m taps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request turns target logits into tokens.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch the filters off; `repetition_penalty` 1,
    `presence_penalty` 0 and `frequency_penalty` 0 switch the penalties off. `stop` holds strings that end the answer
    (excluded from the text), `stop_token_ids` ids that do, beside the target's own end tokens unless `ignore_eos`.
    `logprobs` n asks for the log-probability of each token, and for the n likeliest at its position (0: none beside).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What others must know of a target. `weights_hash` and `template_hash` bind artefacts to it (contracts 4, 5)."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    weights_hash: str = ""
    template_hash: str = ""


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """One target forward: `last_hidden` [T, d] after the final norm, `features` [T, m * d] in tap order."""

    last_hidden: Tensor
    features: Tensor


class Pages(Protocol):
    """Key and value memory for many requests (`nn.pages.PagePool`), opaque to all but the model that made it."""

    pages: int


class Cache(Protocol):
    """Attention state of one request, `length` positions long; `rollback(n)` keeps the first n of them."""

    length: int

    @property
    def capacity(self) -> int: ...

    def rollback(self, length: int) -> None: ...


EMBEDDING, AFTER_NORM = -1, -2
"""Layer ids of what enters the first decoder layer, and of the state after the final norm, which the LM head reads."""


class Target(Protocol):
    """A causal language model whose state can be rolled back.

    Layer id l taps the output of decoder layer l; `EMBEDDING` and `AFTER_NORM` are taps too, the last layer is
    refused. The LM head is a separate call, so that it runs only where logits are needed.
    """

    info: TargetInfo

    def new_cache(self, capacity: int) -> Cache: ...

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        """Append `token_ids` [T] to the request of `cache` and return their states."""
        ...

    def logits(self, last_hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of states [..., d] after the final norm."""
        ...


@runtime_checkable
class RaggedTarget(Target, Protocol):
    """A target that appends different numbers of tokens to many requests in one forward, and keeps states in pages."""

    def new_pages(self, pages: int) -> Pages:
        """Memory for `pages` pages of keys and values, which many requests share."""
        ...

    def forward_ragged(
        self, token_ids: Tensor, caches: Sequence[Cache], counts: Sequence[int], taps: Sequence[int] = ()
    ) -> TargetOutput:
        """Append the next `counts[i]` of `token_ids` [N] to `caches[i]`; states are [N, d], features [N, m * d].

        The cost follows N, not the longest request.
        """
        ...


@runtime_checkable
class GreedyTarget(Target, Protocol):
    """A target that finds its likeliest tokens without giving all logits out."""

    def best_tokens(self, last_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(largest logit, its token: the lowest of equals), each [N], of states [N, d]; NaN where one is not finite."""
        ...


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Share of drafts accepted at each position if those before were, as training measured it; empty if not recorded.

    `sampled` at temperature 1 (1 - TV), `greedy` at temperature 0 (both sides find the same token likeliest).
    """

    sampled: tuple[float, ...] = ()
    greedy: tuple[float, ...] = ()


NOT_RECORDED = Acceptance()


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """What the loop must know of a drafter: gamma draft tokens a round, from features of `target_layer_ids`.

    `draft_token_ids` [V_draft] maps draft ids to target ids when the draft vocabulary is pruned, else None.
    """

    name: str
    gamma: int
    target_layer_ids: tuple[int, ...]
    vocab_size: int
    draft_token_ids: Tensor | None = field(default=None, compare=False)
    acceptance: Acceptance = NOT_RECORDED


class DraftBlock(Protocol):
    """One block being drafted, left to right: the backbone has run, the sequential head takes its gamma steps.

    `step(previous)` is called with the anchor, then with each token as drawn. It returns the draft logits
    [V_draft] (temperature 1, no processors) of the next slot and that slot's confidence logit, or None without a
    confidence head. The confidence reads the previous token, never the one about to be drawn.
    """

    def step(self, previous: int) -> tuple[Tensor, float | None]: ...


class Drafter(Protocol):
    """Proposes gamma tokens a round from the target's features of the committed context."""

    info: DrafterInfo

    def new_cache(self, capacity: int) -> Cache: ...

    def extend(self, features: Tensor, cache: Cache) -> None:
        """Append context features [T, m * d] of the next T committed positions to the request's context K/V."""
        ...

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> DraftBlock:
        """Run the backbone on [anchor, mask x (gamma - 1)]; the anchor's position is `cache.length`."""
        ...


class DraftBlocks(Protocol):
    """Blocks of B requests being drafted side by side: `DraftBlock` for all of them at once."""

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """Float32 logits [B, V_draft] of every block's next slot and confidence logits [B], if there are any.

        `previous` [B] holds the tokens before it, as target ids.
        """
        ...


@dataclass(frozen=True, slots=True)
class LikeliestDrafts:
    """The likeliest tokens of S slots of B blocks, and what their laws say of themselves; all [B, S].

    `tokens` are target ids, `confidences` logits (None without a confidence head), `peaks` the log-odds of the largest
    probabilities, `entropies` in nats.
    """

    tokens: Tensor
    confidences: Tensor | None
    peaks: Tensor
    entropies: Tensor


@runtime_checkable
class GreedyBlocks(DraftBlocks, Protocol):
    """Blocks that may draft their likeliest tokens by themselves, without handing out logits."""

    def likeliest(self, previous: Tensor, slots: int) -> LikeliestDrafts | None:
        """The first `slots` drafts of every block behind the tokens `previous` [B], target ids; None if `step` must.

        Raises SamplingError where logits are not finite.
        """
        ...


@runtime_checkable
class BatchDrafter(Drafter, Protocol):
    """A drafter that serves B requests in one call, and keeps contexts in pages."""

    def new_pages(self, pages: int) -> Pages:
        """Memory for `pages` pages of context keys and values, which many requests share."""
        ...

    def extend_ragged(self, features: Tensor, caches: Sequence[Cache], counts: Sequence[int]) -> None:
        """Append the features of the next `counts[i]` positions to `caches[i]`, of `features` [N, m * d] in order."""
        ...

    def begin_each(self, anchors: Sequence[int], caches: Sequence[Cache], gamma: int) -> DraftBlocks:
        """Run the backbone on the block of every anchor. Blocks write behind their contexts, into pages of theirs."""
        ...


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability by the target itself: temperature 1, no filters, no penalties.

    `top` are the likeliest tokens of the position with theirs, likeliest first, the lowest id first on ties. Masked
    tokens have -inf.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of verifying one block: `accepted` drafts survive and `token` follows them (recovered or bonus).

    `logprobs` are those of the accepted drafts and the token, if the request asks for them.
    """

    accepted: int
    token: int
    logprobs: tuple[TokenLogprob, ...] = ()


def as_ids(tokens: Sequence[int]) -> Tensor:
    """A 1-D int64 tensor of token ids."""
    return torch.tensor(list(tokens), dtype=torch.long)
