"""From logits to tokens. Shapes: V vocabulary; leading dimensions are independent rows.

Filters run in Hugging Face's order: temperature, top-k, top-p, min-p, each renormalised. Tokens that tie with the
last one kept are kept too, so that which tokens survive never depends on their ids.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspark.core.params import is_greedy
from dspark.errors import SamplingError
from dspark.types import SamplingParams


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """Law [..., V] of the next token, in the dtype of the (penalised) `logits` [..., V].

    Temperature 0 puts all mass on the most likely token, the lowest id on ties. A row whose every token is masked
    (-inf) gets no mass at all: nothing can be drawn from it, and no draft is accepted against it.

    Raises:
        SamplingError: a row holds NaN or +inf.
    """
    if is_greedy(params):
        return _one_hot(logits)
    p = _softmax(_top_k(logits / params.temperature, params.top_k))
    p = _top_p(p, params.top_p)
    return _min_p(p, params.min_p)


def greedy_tokens(logits: Tensor) -> list[int | None]:
    """Most likely token of each row of `logits` [T, V], the lowest id on ties; None where every token is masked.

    Raises:
        SamplingError: a row holds NaN or +inf.
    """
    tokens, best = best_of_rows(logits) if logits.device.type == "cpu" else best_on_device(logits)
    check_finite(best)
    return [token if score > -np.inf else None for score, token in zip(best.tolist(), tokens.tolist(), strict=True)]


Best = tuple[NDArray[np.int64], NDArray[np.floating]]


def best_of_rows(logits: Tensor) -> Best:
    """Places and sizes [T] of the largest of each row [T, V]; the first of equals. NaN counts as the largest."""
    rows = logits.numpy(force=True)
    tokens = rows.argmax(axis=-1)  # many times faster than torch's
    return tokens, rows[np.arange(len(rows)), tokens]


def best_on_device(logits: Tensor) -> Best:
    """`best_of_rows` found where the logits are: one copy of 2 T numbers to the host, whatever V is."""
    best, tokens = logits.amax(dim=-1, keepdim=True), logits.argmax(dim=-1)
    both = torch.cat((tokens.double(), best.double().squeeze(-1))).numpy(force=True)
    return both[: len(tokens)].astype(np.int64), both[len(tokens) :]


def draw(p: Tensor, uniform: float) -> int:
    """The token at which the cumulative sum of `p` [V] passes `uniform` in [0, 1) (inverse transform).

    `p` need not sum to one. A token without mass is never returned, whatever the rounding.

    Raises:
        SamplingError: `p` has no mass.
    """
    cumulative = p.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[-1:]
    if not total > 0:
        raise SamplingError("no token can be drawn: every token is masked; loosen the constraint on this position")
    token = int(torch.searchsorted(cumulative, total * uniform, right=True))
    if token < len(p):
        return token
    return int(torch.searchsorted(cumulative, total))


def check_finite(best: NDArray[np.floating]) -> None:
    """Refuse rows by their largest logits `best` [R].

    Raises:
        SamplingError: one is NaN or +inf.
    """
    if not (best < np.inf).all():
        raise SamplingError("the logits hold NaN or +inf; check the weights and the precision of the model")


def _one_hot(logits: Tensor) -> Tensor:
    best, tokens = logits.max(dim=-1, keepdim=True)
    check_finite(best.numpy(force=True))
    return torch.zeros_like(logits).scatter_(-1, tokens, (best > -torch.inf).to(logits.dtype))


def _softmax(logits: Tensor) -> Tensor:
    p = logits.softmax(dim=-1)
    # NaN, +inf and a fully masked row all turn the whole row into NaN, so one column tells.
    if p[..., 0].isnan().any():
        best = logits.amax(dim=-1, keepdim=True)
        check_finite(best.numpy(force=True))
        p = torch.where(best > -torch.inf, p, 0)
    return p


def _top_k(logits: Tensor, k: int) -> Tensor:
    if not 0 < k < logits.shape[-1]:
        return logits
    threshold = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < threshold, -torch.inf)


def _top_p(p: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches `top_p`."""
    if top_p >= 1:
        return p
    rows = p.reshape(-1, p.shape[-1])
    thresholds = torch.stack([_nucleus_edge(row, top_p) for row in rows]).reshape(*p.shape[:-1], 1)
    return _keep(p, p >= thresholds)


def _nucleus_edge(p: Tensor, top_p: float) -> Tensor:
    """Mass of the least likely token that is kept of the row `p` [V]."""
    # Tokens below (1 - top_p) / V weigh less than 1 - top_p together, so none of them is kept: sort only the others.
    ranked = p[p >= (1 - top_p) / len(p)].sort(descending=True).values
    kept = int((ranked.cumsum(dim=-1) - ranked < top_p).sum())
    return ranked[max(kept, 1) - 1] if len(ranked) else p.new_zeros(())


def _min_p(p: Tensor, min_p: float) -> Tensor:
    if min_p <= 0:
        return p
    return _keep(p, p >= min_p * p.amax(dim=-1, keepdim=True))


def _keep(p: Tensor, kept: Tensor) -> Tensor:
    p = torch.where(kept, p, 0)
    return p / p.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
