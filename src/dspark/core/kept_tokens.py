"""The tokens that top-k, top-p and min-p keep, found without looking at each token of the vocabulary.

A filter keeps likely tokens, of which there are few. So one pass takes the largest logit of each of many sets of
tokens; only in sets whose largest may be kept is anything compared, exponentiated or sorted. The filters are those of
`core.sampling` (Hugging Face's order, ties with the last one kept are kept), in float64.

Shapes: N rows of logits, R of them asked for, W tokens of a row, S sets, C tokens compared in a row.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dspark.core.laws import Ids, KeptLaw
from dspark.core.sampling import check_finite
from dspark.types import SamplingParams

Reals = NDArray[np.float64]

SET = 64
"""Most tokens of a set."""
FEW = 48
"""Sets that are looked into rather than summing the row."""
IN_CACHE = 2**17
"""Tokens whose weights are summed at once."""
UNSEEN = 1e-8
"""Share of the mass that tokens left out of a sum may have together: less than float32 tells from none."""
SLACK = 1e-6
"""Nats by which a bound is lowered, against rounding: what it lets through is compared exactly later."""


def filters(params: SamplingParams, width: int) -> bool:
    """Whether some of `width` tokens may be dropped."""
    return 0 < params.top_k < width or params.top_p < 1 or params.min_p > 0


def kept_laws(logits: Tensor, rows: Ids, params: SamplingParams) -> list[KeptLaw]:
    """Laws of rows `rows` [R] of (penalised) `logits` [N, W], whose ids are places in the row; empty if all is masked.

    Raises:
        SamplingError: one of them holds NaN or +inf.
    """
    sets = _Sets.of(logits, rows)
    check_finite(sets.best)
    candidates = _candidates(sets, params)
    weights = candidates.weights
    ranked = -np.sort(-weights, axis=1)
    edge = np.full(len(rows), np.finfo(np.float64).tiny)
    if 0 < params.top_k < sets.width and params.top_k <= ranked.shape[1]:
        edge = np.maximum(edge, ranked[:, params.top_k - 1])
        ranked = np.where(ranked >= edge[:, None], ranked, 0)
    if params.top_p < 1:
        edge = np.maximum(edge, _nucleus_edges(ranked, candidates.totals, params.top_p))
    if params.min_p > 0:
        edge = np.maximum(edge, params.min_p * ranked[:, 0])
    return candidates.at_least(edge)


@dataclass(frozen=True, slots=True)
class _Sets:
    """The asked rows, in sets of neighbouring tokens: `peaks` [R, S] are the best logit of each."""

    logits: NDArray[np.floating]  # [N, S, tokens of a set]
    rows: Ids
    peaks: NDArray[np.floating]

    @classmethod
    def of(cls, logits: Tensor, rows: Ids) -> "_Sets":
        view = logits.view(len(logits), -1, math.gcd(logits.shape[1], SET))
        if len(rows) == len(logits):
            return cls(view.numpy(), rows, view.amax(dim=2).numpy())
        return cls(view.numpy(), rows, np.stack([view[row].amax(dim=1).numpy() for row in rows]))

    @property
    def width(self) -> int:
        """W."""
        return int(self.logits.shape[1] * self.logits.shape[2])

    @property
    def best(self) -> NDArray[np.floating]:
        """The largest logit of each row [R]."""
        best: NDArray[np.floating] = self.peaks.max(axis=1)
        return best

    def only(self, some: Ids) -> "_Sets":
        """Some of the R rows."""
        return _Sets(self.logits, self.rows[some], self.peaks[some])

    def above(self, floor: Reals) -> tuple[Ids, Ids, NDArray[np.floating]]:
        """Row (of R), token and logit of everything that is `floor` [R] or more and not masked, row by row by token."""
        floor = np.maximum(floor, np.finfo(self.peaks.dtype).min)
        of_set, sets = (self.peaks >= floor[:, None]).nonzero()
        values = self.logits[self.rows[of_set], sets]
        hits = np.flatnonzero(values >= floor[of_set, None])
        place, inside = np.divmod(hits, values.shape[1])
        return of_set[place], sets[place] * values.shape[1] + inside, values.reshape(-1)[hits]

    def totals(self, best: Reals, temperature: float) -> Reals:
        """Sum over all tokens of exp((logit - best) / temperature), a few rows at a time."""
        size = max(IN_CACHE // self.width, 1)
        parts = [self._totals(slice(i, i + size), best, temperature) for i in range(0, len(best), size)]
        return np.concatenate(parts)

    def _totals(self, part: slice, best: Reals, temperature: float) -> Reals:
        scaled = self.logits[self.rows[part]].reshape(-1, self.width) - best[part, None].astype(self.logits.dtype)
        if temperature != 1:
            scaled *= scaled.dtype.type(1 / temperature)
        np.maximum(scaled, -80, out=scaled)  # adds nothing, and spares numbers so small that processors are slow
        of_sets = np.exp(scaled, out=scaled).reshape(len(scaled), *self.logits.shape[1:]).sum(axis=2)
        total: Reals = of_sets.astype(np.float64).sum(axis=1)
        return total


@dataclass(frozen=True, slots=True)
class _Candidates:
    """What may be kept, `tokens` and `weights` [R, C] (0 where a row has fewer), relative to the likeliest token.

    `totals` [R] is the weight of all the row's tokens; not positive where the candidates' own sum is meant.
    """

    tokens: Ids
    weights: Reals
    totals: Reals

    def at_least(self, edge: Reals) -> list[KeptLaw]:
        """The laws of the tokens that weigh `edge` [R] or more, ids ascending."""
        row, column = (self.weights >= edge[:, None]).nonzero()
        ids, weights = self.tokens[row, column], self.weights[row, column]
        ends = row.searchsorted(np.arange(len(edge)), side="right").tolist()
        parts = zip([0, *ends[:-1]], ends, strict=True)
        return [KeptLaw(ids[a:b], weights[a:b] / weights[a:b].sum()) for a, b in parts]


def _candidates(sets: _Sets, params: SamplingParams) -> _Candidates:
    best = np.where(sets.best > -np.inf, sets.best, 0).astype(np.float64)
    floor, totals = _floor(sets, best, params)
    row, token, logits = sets.above(floor)
    counts = np.bincount(row, minlength=len(best))
    column = np.arange(len(row)) - (counts.cumsum() - counts)[row]
    shape = len(best), max(int(counts.max()), 1)
    tokens, weights = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    tokens[row, column] = token
    weights[row, column] = np.exp((logits - best[row]) / params.temperature)
    return _Candidates(tokens, weights, totals)


def _floor(sets: _Sets, best: Reals, params: SamplingParams) -> tuple[Reals, Reals]:
    """Logits [R] below which nothing is kept (nor needed for the sum, where no total is known), and the totals [R]."""
    totals = np.zeros(len(best))
    if 0 < params.top_k < sets.width:
        return _kth_at_least(sets, params.top_k), totals
    if params.top_p >= 1:
        least = math.log(params.min_p) - SLACK if params.min_p > 0 else -math.inf
        return best + params.temperature * least, totals
    floor = best - params.temperature * (math.log(sets.width) - math.log(UNSEEN))
    crowded = np.flatnonzero((sets.peaks >= floor[:, None]).sum(axis=1) > max(sets.peaks.shape[1] // 8, FEW))
    if len(crowded):  # so much is above the floor that summing whole rows costs less
        some = sets.only(crowded)
        totals[crowded] = some.totals(best[crowded], params.temperature)
        floor[crowded] = _nucleus_floor(some, best[crowded], totals[crowded], params)
    return floor, totals


def _nucleus_floor(sets: _Sets, best: Reals, totals: Reals, params: SamplingParams) -> Reals:
    """Logits [R] that no token of the nucleus is below: those of few sets, if what is above them weighs enough."""
    # Tokens below this weigh less than 1 - top_p together, so none of them is kept.
    shares = np.log(totals * (1 - params.top_p) / sets.width)
    floor = best + params.temperature * (np.minimum(shares, 0) - SLACK)
    waiting = np.arange(len(best))
    for share in (16, 4):
        some = sets.only(waiting)
        guess = np.maximum(_kth_at_least(some, max(sets.peaks.shape[1] // share, 1)), floor[waiting])
        row, _, logits = some.above(guess)
        weights = np.exp((logits - best[waiting][row]) / params.temperature)
        enough = np.bincount(row, weights, len(waiting)) > (params.top_p + SLACK) * totals[waiting]
        floor[waiting[enough]] = guess[enough]
        waiting = waiting[~enough]
        if not len(waiting):
            break
    return floor


def _kth_at_least(sets: _Sets, k: int) -> Reals:
    """A logit [R] that the k-th largest of the row reaches: that many sets hold one."""
    values = sets.peaks if k <= sets.peaks.shape[1] else sets.logits[sets.rows].reshape(len(sets.rows), -1)
    place = values.shape[1] - k
    return np.partition(values, place, axis=1)[:, place].astype(np.float64)


def _nucleus_edges(ranked: Reals, totals: Reals, top_p: float) -> Reals:
    """Weight [R] of the last token of the smallest set of likeliest ones whose mass reaches `top_p`."""
    cumulative = ranked.cumsum(axis=1)
    totals = np.where(totals > 0, totals, cumulative[:, -1])
    before = np.concatenate((np.zeros((len(ranked), 1)), cumulative[:, :-1]), axis=1)
    kept = ((before < top_p * totals[:, None]) & (ranked > 0)).sum(axis=1)
    edges: Reals = ranked[np.arange(len(ranked)), np.maximum(kept, 1) - 1]
    return edges
