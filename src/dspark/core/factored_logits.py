"""Logits that are never formed as a whole: read in vocabulary chunks, and read again in the backward pass.

A loss needs four things of a law over V tokens: its normaliser, the log-probabilities of some tokens, its distance from
the target's law, and their gradients. All four are sums over the vocabulary, so no tensor of N x V elements is needed.

Shapes: N rows, d width, R rank of the sequential head, V vocabulary, K tokens a row, C tokens in a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FactoredLogits:
    """hidden head^T + latents w2^T, [N, V], kept as its factors; the second product is optional.

    `hidden` [N, d], `head` [V, d], `latents` [N, R], `w2` [V, R]. With `soft_cap` c, the first product x becomes
    c tanh(x / c), as Gemma's heads have it. Raises ConfigError when they do not fit together.
    """

    hidden: Tensor
    head: Tensor
    latents: Tensor | None = None
    w2: Tensor | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        _check_product("hidden", self.hidden, "head", self.head)
        if (self.latents is None) != (self.w2 is None):
            raise ConfigError("latents and w2 make one product: give both of them or neither.")
        if self.latents is not None and self.w2 is not None:
            _check_product("latents", self.latents, "w2", self.w2)
            if len(self.latents) != len(self.hidden) or len(self.w2) != len(self.head):
                raise ConfigError(
                    f"latents {list(self.latents.shape)} and w2 {list(self.w2.shape)} do not fit hidden "
                    f"{list(self.hidden.shape)} and head {list(self.head.shape)}: rows must be as many."
                )

    @property
    def vocabulary(self) -> int:
        """V."""
        return len(self.head)

    def dense(self) -> Tensor:
        """The whole logits [N, V], under autocast where that is on."""
        logits = soft_capped(F.linear(self.hidden, self.head.to(self.hidden.dtype)), self.soft_cap)
        if self.latents is None or self.w2 is None:
            return logits
        return logits + F.linear(self.latents, self.w2)

    def to(self, dtype: torch.dtype) -> "FactoredLogits":
        """The same with every factor in `dtype`; gradients return to the factors as they were."""
        latents = None if self.latents is None else self.latents.to(dtype)
        w2 = None if self.w2 is None else self.w2.to(dtype)
        return FactoredLogits(self.hidden.to(dtype), self.head.to(dtype), latents, w2, self.soft_cap)

    def columns(self, start: int, end: int) -> Tensor:
        """Logits [N, end - start] of the tokens from `start` to before `end`, in float32 or better."""
        logits = self._capped_columns(start, end)
        if self.latents is not None and self.w2 is not None:
            logits = logits.addmm_(self.latents, self.w2[start:end].T)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def slope(self, start: int, end: int) -> Tensor | None:
        """d capped / d product [N, end - start] = 1 - (capped / c)^2; None without a cap."""
        if self.soft_cap is None:
            return None
        return 1 - (self._capped_columns(start, end) / self.soft_cap).square_()

    def _capped_columns(self, start: int, end: int) -> Tensor:
        return soft_capped(F.linear(self.hidden, self.head[start:end].to(self.hidden.dtype)), self.soft_cap)


def soft_capped(logits: Tensor, cap: float | None) -> Tensor:
    """c tanh(logits / c) for a cap c, the logits themselves without one."""
    return logits if cap is None else torch.tanh(logits / cap) * cap


def log_probs_at(draft: FactoredLogits, ids: Tensor, chunk: int) -> Tensor:
    """log p_d [N, K] of the tokens `ids` [N, K], reading `chunk` tokens of the vocabulary at a time.

    Every factor that requires a gradient gets one. Raises ConfigError unless `chunk` is positive.
    """
    log_probs, _ = _compare(draft, None, ids, chunk)
    return log_probs


def compare_laws(draft: FactoredLogits, target: FactoredLogits, ids: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """(log p_d [N, K] of the tokens `ids` [N, K], sum_v |p_d - p_t| [N]); the latter is twice the total variation.

    The draft's factors get gradients of both, the target's none. Raises ConfigError unless both have the same shape
    [N, V] and `chunk` is positive.
    """
    if target.vocabulary != draft.vocabulary:
        raise ConfigError(
            f"The draft has {draft.vocabulary} tokens and the target {target.vocabulary}: laws are compared over one "
            "vocabulary. With a pruned draft vocabulary use a sparse teacher."
        )
    if len(target.hidden) != len(draft.hidden):
        raise ConfigError(
            f"The draft has {len(draft.hidden)} rows and the target {len(target.hidden)}: expected one a slot of both."
        )
    return _compare(draft, target, ids, chunk)


@torch.no_grad()
def favourites(logits: FactoredLogits, chunk: int) -> Tensor:
    """argmax over the vocabulary, [N]; the first of equals."""
    tokens = torch.zeros(len(logits.hidden), dtype=torch.long, device=logits.hidden.device)
    best = torch.full_like(tokens, -torch.inf, dtype=torch.float32)
    for start, end in _chunks(logits.vocabulary, chunk):
        values, indices = logits.columns(start, end).max(-1)
        better = values > best
        best = torch.where(better, values, best)
        tokens = torch.where(better, indices + start, tokens)
    return tokens


@torch.no_grad()
def likeliest(logits: FactoredLogits, count: int, chunk: int) -> Tensor:
    """The `count` tokens with the largest logits, [N, count], largest first."""
    best = logits.hidden.new_empty(len(logits.hidden), 0, dtype=torch.float32)
    tokens = torch.empty_like(best, dtype=torch.long)
    for start, end in _chunks(logits.vocabulary, chunk):
        columns = torch.arange(start, end, device=best.device).expand(len(best), -1)
        values, tokens = torch.cat((best, logits.columns(start, end)), 1), torch.cat((tokens, columns), 1)
        best, places = values.topk(min(count, values.shape[1]), dim=-1)
        tokens = tokens.gather(1, places)
    return tokens


def _compare(draft: FactoredLogits, target: FactoredLogits | None, ids: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    return _Comparison.apply(  # type: ignore[no-any-return, no-untyped-call]
        draft.hidden, draft.head, draft.latents, draft.w2, draft.soft_cap, target, ids, chunk
    )


class _Comparison(torch.autograd.Function):
    """`compare_laws`; without a target the distance is 0. Only vectors over rows are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        head: Tensor,
        latents: Tensor | None,
        w2: Tensor | None,
        soft_cap: float | None,
        target: FactoredLogits | None,
        ids: Tensor,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        draft = FactoredLogits(hidden, head, latents, w2, soft_cap)
        normaliser, at_ids = _scan(draft, ids, chunk)
        against = None if target is None else _Law(target, _scan(target, ids[:, :0], chunk)[0])
        distance, pull = _distance(_Law(draft, normaliser), against, chunk)
        ctx.save_for_backward(hidden, head, latents, w2, ids, normaliser, pull)  # type: ignore[arg-type]
        ctx.against, ctx.chunk, ctx.soft_cap = against, chunk, soft_cap  # type: ignore[attr-defined]
        return at_ids - normaliser, distance

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_log_probs: Tensor, grad_distance: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, latents, w2, ids, normaliser, pull = ctx.saved_tensors  # type: ignore[attr-defined]
        draft = FactoredLogits(hidden, head, latents, w2, ctx.soft_cap)  # type: ignore[attr-defined]
        law = _Law(draft, normaliser)
        gradients = _Gradients(law.logits, ctx.needs_input_grad)  # type: ignore[attr-defined]
        away = grad_log_probs.sum(-1, keepdim=True)
        for start, end in _chunks(law.logits.vocabulary, ctx.chunk):  # type: ignore[attr-defined]
            p_d = law.columns(start, end)
            if ctx.against is None:  # type: ignore[attr-defined]
                grad = p_d.mul_(-away)
            else:
                # d sum |p_d - p_t| / d logit_v = p_d(v) (sign(v) - sum_u p_d(u) sign(u))
                sign = (p_d - ctx.against.columns(start, end)).sign_()  # type: ignore[attr-defined]
                grad = sign.sub_(pull).mul_(grad_distance[:, None]).sub_(away).mul_(p_d)
            inside, local = _inside(ids, start, end)
            gradients.add(start, end, grad.scatter_add_(-1, local, grad_log_probs * inside))
        return (*gradients.of_factors(), None, None, None, None)


@dataclass(frozen=True, slots=True)
class _Law:
    """Probabilities behind logits, given their normalisers [N, 1]."""

    logits: FactoredLogits
    normaliser: Tensor

    def columns(self, start: int, end: int) -> Tensor:
        return self.logits.columns(start, end).sub_(self.normaliser).exp_()


class _Gradients:
    """Sums what chunks of logit gradients say about the factors that need a gradient."""

    def __init__(self, logits: FactoredLogits, needed: tuple[bool, ...]) -> None:
        self.logits = logits
        self.hidden, self.latents = (_sum_like(logits.hidden, needed[0]), _sum_like(logits.latents, needed[2]))
        self.head = torch.empty_like(logits.head) if needed[1] else None
        self.w2 = torch.empty_like(logits.w2) if logits.w2 is not None and needed[3] else None

    def add(self, start: int, end: int, grad: Tensor) -> None:
        """Take the gradient [N, end - start] of the logits from `start` to before `end`."""
        hidden, head, latents, w2 = (self.logits.hidden, self.logits.head, self.logits.latents, self.logits.w2)
        grad = grad.to(hidden.dtype)
        slope = self.logits.slope(start, end)
        inner = grad if slope is None else grad * slope
        if self.hidden is not None:
            self.hidden += inner @ head[start:end].to(hidden.dtype)
        if self.head is not None:
            self.head[start:end] = inner.T @ hidden
        if self.latents is not None and w2 is not None:
            self.latents += grad @ w2[start:end]
        if self.w2 is not None and latents is not None:
            self.w2[start:end] = grad.T @ latents

    def of_factors(self) -> tuple[Tensor | None, ...]:
        """Gradients of hidden, head, latents and w2, in their types; None where none is needed."""
        hidden, latents = (
            None if total is None else total.to(self.logits.hidden.dtype) for total in (self.hidden, self.latents)
        )
        return hidden, self.head, latents, self.w2


def _sum_like(factor: Tensor | None, needed: bool) -> Tensor | None:
    """Zeros to add chunks to: float32 at least, because there are many."""
    if factor is None or not needed:
        return None
    return torch.zeros_like(factor, dtype=torch.promote_types(factor.dtype, torch.float32))


def _scan(logits: FactoredLogits, ids: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """(normaliser log sum_v exp [N, 1], logits [N, K] at `ids`)."""
    normaliser = at_ids = None
    for start, end in _chunks(logits.vocabulary, chunk):
        columns = logits.columns(start, end)
        inside, local = _inside(ids, start, end)
        found = columns.gather(-1, local).masked_fill_(~inside, 0.0)
        partial = columns.logsumexp(-1, keepdim=True)
        at_ids = found if at_ids is None else at_ids + found
        normaliser = partial if normaliser is None else torch.logaddexp(normaliser, partial)
    if normaliser is None or at_ids is None:
        raise ConfigError("A head without rows has no law: expected at least one token.")
    return normaliser, at_ids


def _distance(draft: _Law, target: _Law | None, chunk: int) -> tuple[Tensor, Tensor]:
    """(sum_v |p_d - p_t| [N], sum_v p_d sign(p_d - p_t) [N, 1]); zeros without a target."""
    distance, pull = torch.zeros_like(draft.normaliser[:, 0]), torch.zeros_like(draft.normaliser)
    if target is None:
        return distance, pull
    for start, end in _chunks(draft.logits.vocabulary, chunk):
        p_d = draft.columns(start, end)
        gap = p_d - target.columns(start, end)
        distance += gap.abs().sum(-1)
        pull += (p_d * gap.sign_()).sum(-1, keepdim=True)
    return distance, pull


def _inside(ids: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Whether `ids` lie in a chunk, and where; ids outside stand at some place inside."""
    return (ids >= start) & (ids < end), (ids - start).clamp(0, end - start - 1)


def _chunks(vocabulary: int, chunk: int) -> Iterator[tuple[int, int]]:
    if chunk < 1:
        raise ConfigError(f"A vocabulary chunk of {chunk} tokens cannot be read: give at least 1.")
    return ((start, min(start + chunk, vocabulary)) for start in range(0, vocabulary, chunk))


def _check_product(left_name: str, left: Tensor, right_name: str, right: Tensor) -> None:
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[1]:
        raise ConfigError(
            f"{left_name} is {list(left.shape)} and {right_name} {list(right.shape)}: expected two matrices, one row a "
            "slot and one a token, of the same width."
        )
