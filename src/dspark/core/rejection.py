"""Lossless verification of a drafted block. Shapes: k drafts, V vocabulary; p [k + 1, V] target, q [k, V] draft laws.

Row i of p and q is the law of the token after i drafts, so q[i] is the vector that drafts[i] was drawn from, and
p[k] the law after the whole block.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dspark.core.laws import Law, masked_error
from dspark.core.sampling import draw
from dspark.types import Verdict

NO_DRAFT = -1
"""Stands where a block has ended: no token equals it."""


@runtime_checkable
class RejectionRule(Protocol):
    """How many drafts survive, and what follows them: exact pieces, from which sampling and enumeration are both built.

    Draft i passes when its uniform is below `thresholds[i]`; `accepted` turns the passes into a number of drafts.
    """

    def thresholds(self, p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
        """Probability [k] that each draft passes, given all that is verified."""
        ...

    def accepted(self, passes: Sequence[bool]) -> int:
        """Number of surviving drafts, 0 to k."""
        ...

    def accepted_law(self, thresholds: Sequence[float]) -> list[float]:
        """Probability [k + 1] of each number of surviving drafts when passes are independent."""
        ...

    def correction(self, p: Tensor, q: Tensor, drafts: Sequence[int], accepted: int) -> Tensor:
        """Law [V] of the token after the `accepted` drafts: recovered when accepted < k, bonus at k."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRejection:
    """Token by token: keep x with probability min(1, p(x) / q(x)), stop at the first miss (Leviathan et al. 2023)."""

    def thresholds(self, p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
        """min(1, p(x_i) / q(x_i))."""
        return [min(1.0, ratio) for ratio in likelihood_ratios(p, q, drafts)]

    def accepted(self, passes: Sequence[bool]) -> int:
        """Drafts before the first that fails."""
        return next((i for i, passed in enumerate(passes) if not passed), len(passes))

    def accepted_law(self, thresholds: Sequence[float]) -> list[float]:
        """Survival of i drafts times the miss of the next."""
        law, survival = [], 1.0
        for threshold in thresholds:
            law.append(survival * (1 - threshold))
            survival *= threshold
        return [*law, survival]

    def correction(self, p: Tensor, q: Tensor, drafts: Sequence[int], accepted: int) -> Tensor:
        """max(p - q, 0) of the rejected position, normalised; p after the last draft."""
        return residual(p[accepted], q[accepted]) if accepted < len(drafts) else p[accepted]


def verify(
    rule: RejectionRule,
    p: Tensor,
    q: Tensor,
    drafts: Sequence[int],
    accept: Sequence[float],
    recover: Sequence[float],
) -> Verdict:
    """Judge `drafts` [k] with uniforms `accept` [k] (one per draft) and `recover` [k + 1] (one per closing position).

    Only the first k rows of q are read: a verified prefix may be shorter than what was drafted.

    Raises:
        SamplingError: every token is masked at the position that closes the block.
    """
    thresholds = rule.thresholds(p, q, drafts)
    accepted = rule.accepted([u < threshold for u, threshold in zip(accept, thresholds, strict=True)])
    return Verdict(accepted, draw(rule.correction(p, q, drafts, accepted), recover[accepted]))


def survives(p: Law, q: Law, draft: int, uniform: float) -> bool:
    """Whether `TokenRejection` keeps `draft`, which was drawn from q."""
    mass = q.mass(draft)
    return mass > 0 and uniform < min(1.0, p.mass(draft) / mass)


def verify_greedy(best: Iterable[int | None], drafts: Sequence[int]) -> Verdict:
    """Judge `drafts` [k] against the target's most likely tokens `best` [k + 1]: what both rules do to one-hot laws.

    Nothing is asked of `best` beyond the first draft that does not survive.

    Raises:
        SamplingError: every token is masked at the position that closes the block.
    """
    judged = zip(best, (*drafts, NO_DRAFT), strict=False)
    accepted, token = next((i, token) for i, (token, draft) in enumerate(judged) if token != draft)
    if token is None:
        raise masked_error()
    return Verdict(accepted, token)


def likelihood_ratios(p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
    """p(x_i) / q(x_i) [k]; 0 where q(x_i) is 0, since such a token was not drawn from q and must not pass."""
    positions = torch.arange(len(drafts))
    tokens = torch.tensor(list(drafts), dtype=torch.long)
    pairs = zip(p[positions, tokens].tolist(), q[positions, tokens].tolist(), strict=True)
    return [p_x / q_x if q_x > 0 else 0.0 for p_x, q_x in pairs]


def residual(p: Tensor, q: Tensor, weight: float = 1.0) -> Tensor:
    """max(weight p - q, 0) [V], normalised: the law of the token that replaces a rejected one.

    Without any mass p does not exceed q beyond rounding, and p itself is returned.
    """
    excess = (weight * p - q).clamp_min(0)
    mass = excess.sum()
    return excess / mass if mass > 0 else p
