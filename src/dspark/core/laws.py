"""Laws of one next token that know which tokens they can yield, so that judging a draft costs no vocabulary.

Shapes: V vocabulary, V_draft draft vocabulary, n tokens of a law, W tokens of a row (V or V_draft), R rows.
Python's numpy on the host: bits of a row never depend on the rows beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspark.errors import SamplingError

Ids = NDArray[np.int64]
Masses = NDArray[np.floating]

GROUP = 256
"""Tokens whose masses are summed before any is looked at when a token is drawn."""


class Law(Protocol):
    """Masses of the tokens of a row, summing to one within rounding."""

    @property
    def ids(self) -> Ids | None:
        """Target ids [n] of `masses`; None: token i is the i-th."""
        ...

    @property
    def masses(self) -> Masses:
        """Probability [n] of each."""
        ...

    def mass(self, token: int) -> float:
        """Probability of the target id `token`."""
        ...

    def excess(self, q: "Law") -> "Law":
        """max(p - q, 0) for this law p, not normalised; p itself where it nowhere exceeds q. This law is used up."""
        ...


@dataclass(frozen=True, slots=True)
class KeptLaw:
    """The few tokens that filters kept: ascending `ids` [n], positive `masses` [n] (float64)."""

    ids: Ids
    masses: NDArray[np.float64]

    def mass(self, token: int) -> float:
        """0 for tokens that were not kept."""
        place = int(self.ids.searchsorted(token))
        return float(self.masses[place]) if place < len(self.ids) and self.ids[place] == token else 0.0

    def excess(self, q: Law) -> Law:
        """As `Law.excess`."""
        rest = self.masses - masses_of(q, self.ids)
        kept = rest > 0
        return KeptLaw(self.ids[kept], rest[kept]) if kept.any() else self


@dataclass(frozen=True, slots=True)
class FullLaw:
    """Every token of a row: `masses` [W]; `ids` [W] are their target ids, or None if the row is the vocabulary."""

    masses: Masses
    ids: Ids | None = None

    def mass(self, token: int) -> float:
        """0 for tokens outside the row."""
        if self.ids is None:
            return float(self.masses[token])
        places = (self.ids == token).nonzero()[0]
        return float(self.masses[places[0]]) if len(places) else 0.0

    def excess(self, q: Law) -> Law:
        """As `Law.excess`, written over the masses; a law of the whole vocabulary only."""
        assert self.ids is None
        where = slice(None) if q.ids is None else q.ids
        before = self.masses[where].copy()
        self.masses[where] = np.maximum(before - q.masses, 0)
        if not self.masses.any():
            self.masses[where] = before
        return self


def one_token(token: int) -> KeptLaw:
    """The law of a token that is certain: what a draft that nothing was drawn for is judged with."""
    return KeptLaw(np.array([token], dtype=np.int64), np.ones(1))


def dense(law: Law, size: int) -> Tensor:
    """The law's masses [size] in the target's vocabulary."""
    masses = np.zeros(size, dtype=law.masses.dtype)
    masses[slice(None) if law.ids is None else law.ids] = law.masses
    return torch.from_numpy(masses)


def masses_of(law: Law, ids: Ids) -> NDArray[np.float64]:
    """Masses [n] of the target ids `ids` [n], ascending."""
    if law.ids is None:
        return law.masses[ids].astype(np.float64)
    masses = np.zeros(len(ids))
    places = ids.searchsorted(law.ids)
    known = ids[places.clip(max=len(ids) - 1)] == law.ids
    masses[places[known]] = law.masses[known]
    return masses


def draw_from(law: Law, uniform: float) -> int:
    """The token at which the cumulative sum of the masses passes `uniform` in [0, 1); never one without mass.

    Raises:
        SamplingError: the law has no mass.
    """
    (place,) = draw_each([law], [uniform])
    return place if law.ids is None else int(law.ids[place])


def draw_each(laws: Sequence[Law], uniforms: Sequence[float]) -> list[int]:
    """`draw_from` each law: not the tokens, but their places in the laws. Full laws have the same length."""
    full = [i for i, law in enumerate(laws) if isinstance(law, FullLaw)]
    places = dict(zip(full, _draw_full([laws[i] for i in full], [uniforms[i] for i in full]), strict=True))
    return [places[i] if i in places else _draw_kept(law, uniforms[i]) for i, law in enumerate(laws)]


def _draw_full(laws: Sequence[Law], uniforms: Sequence[float]) -> list[int]:
    if not laws:
        return []
    masses = laws[0].masses[None] if len(laws) == 1 else np.stack([law.masses for law in laws])
    places: list[int] = draw_places(masses, np.array(uniforms)).tolist()
    return places


def _draw_kept(law: Law, uniform: float) -> int:
    cumulative = law.masses.cumsum()
    if not len(cumulative):
        raise masked_error()
    place = int(cumulative.searchsorted(cumulative[-1] * uniform, side="right"))
    return place if place < len(cumulative) else int(cumulative.searchsorted(cumulative[-1]))


def draw_places(masses: Masses, uniforms: NDArray[np.float64]) -> Ids:
    """For each row of `masses` [R, W] the place at which its cumulative sum passes the row's share `uniforms` [R].

    Sums of groups find the group, its own cumulative sum the place in it.

    Raises:
        SamplingError: a row has no mass.
    """
    rows, group = np.arange(len(masses)), math.gcd(masses.shape[1], GROUP)
    groups = masses.reshape(len(masses), -1, group)
    ends = groups.sum(axis=2).cumsum(axis=1, dtype=np.float64)
    if not (ends[:, -1] > 0).all():
        raise masked_error()
    goals = ends[:, -1] * uniforms
    chosen = first_above(ends, goals)
    begins = np.where(chosen > 0, ends[rows, chosen - 1], 0.0)
    inside = groups[rows, chosen].cumsum(axis=1, dtype=np.float64)
    return chosen * group + first_above(inside, goals - begins)


def first_above(cumulative: NDArray[np.float64], goals: NDArray[np.float64]) -> Ids:
    """Column [R] at which each row of `cumulative` [R, n] passes its goal; where it ends, if rounding never lets it."""
    goals = np.where(cumulative[:, -1] > goals, goals, np.nextafter(cumulative[:, -1], -np.inf))
    columns: Ids = (cumulative > goals[:, None]).argmax(axis=1)
    return columns


def masked_error() -> SamplingError:
    """What a position that allows no token is answered with."""
    return SamplingError("no token can be drawn: every token is masked; loosen the constraint on this position")
