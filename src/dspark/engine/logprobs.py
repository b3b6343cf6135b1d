"""Log-probabilities of emitted tokens, drafts and closing tokens alike. Shapes: T tokens, V vocabulary."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dspark.types import TokenLogprob


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    """Of each of `tokens` [T], given the target's raw logits [T, V] of their positions, with the `top` likeliest."""
    rows = logits.numpy(force=True)
    return tuple(_token_logprob(row, token, top) for row, token in zip(rows, tokens, strict=True))


def _token_logprob(row: NDArray[np.floating], token: int, top: int) -> TokenLogprob:
    best = row.max()
    normaliser = float(best) + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
    likeliest = tuple((place, float(row[place]) - normaliser) for place in _likeliest(row, top))
    return TokenLogprob(token, float(row[token]) - normaliser, likeliest)


def _likeliest(row: NDArray[np.floating], top: int) -> list[int]:
    if top == 0:
        return []
    floor = np.partition(row, len(row) - top)[len(row) - top]
    places = (row >= floor).nonzero()[0]
    ranked: list[int] = places[np.argsort(-row[places], kind="stable")][:top].tolist()
    return ranked
