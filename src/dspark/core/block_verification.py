"""Block verification: judge a block as a whole, accept at least as much (Sun et al. 2024, arXiv 2403.10444, Alg. 2).

Shapes: k drafts, V vocabulary; p [k + 1, V] target laws, q [k, V] draft laws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dspark.core.rejection import likelihood_ratios, residual


@dataclass(frozen=True, slots=True)
class BlockVerification:
    """Keep the longest prefix that passes, where a prefix may pass though a shorter one failed.

    Prefix i has weight w_i = min(1, w_{i-1} p(x_i) / q(x_i)), w_0 = 1. It passes with probability
    h_i = s_i / (s_i + 1 - w_i), s_i = sum over x of max(w_i p(x) - q(x), 0) at the next position, and h_k = w_k.
    """

    def thresholds(self, p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
        """h_1, ..., h_k."""
        weights = prefix_weights(p, q, drafts)
        inner = [_pass_probability(weight, p[i], q[i]) for i, weight in enumerate(weights[1:-1], start=1)]
        return [*inner, *weights[1:][-1:]]

    def accepted(self, passes: Sequence[bool]) -> int:
        """The longest prefix that passes."""
        return max((i for i, passed in enumerate(passes, start=1) if passed), default=0)

    def accepted_law(self, thresholds: Sequence[float]) -> list[float]:
        """h_i times the misses of all longer prefixes."""
        law, missed = [], 1.0
        for threshold in reversed(thresholds):
            law.append(missed * threshold)
            missed *= 1 - threshold
        return [missed, *reversed(law)]

    def correction(self, p: Tensor, q: Tensor, drafts: Sequence[int], accepted: int) -> Tensor:
        """max(w p - q, 0) after the kept prefix of weight w, normalised; p after the last draft."""
        if accepted == len(drafts):
            return p[accepted]
        return residual(p[accepted], q[accepted], prefix_weights(p, q, drafts)[accepted])


def prefix_weights(p: Tensor, q: Tensor, drafts: Sequence[int]) -> list[float]:
    """w_0, ..., w_k of the drafted block."""
    weights = [1.0]
    for ratio in likelihood_ratios(p, q, drafts):
        weights.append(min(1.0, weights[-1] * ratio) if weights[-1] > 0 else 0.0)
    return weights


def _pass_probability(weight: float, p: Tensor, q: Tensor) -> float:
    if weight == 0:
        return 0.0
    surplus = float((weight * p - q).clamp_min_(0).sum())
    # 0 / 0 arises only at weight 1 with p = q, where the next prefix has weight 1 as well and decides instead.
    return surplus / (surplus + 1 - weight) if surplus + 1 - weight > 0 else 1.0
