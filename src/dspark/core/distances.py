"""Distances between distributions over the last axis. All take probabilities [..., V] and return [...]."""

from torch import Tensor


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """TV(p, q) = 1/2 sum_v |p_v - q_v|."""
    return 0.5 * (p - q).abs().sum(-1)


def acceptance_rate(p_t: Tensor, p_d: Tensor) -> Tensor:
    """alpha = sum_v min(p_t, p_d) = 1 - TV: the chance that a draft from p_d survives token-wise rejection."""
    return 1.0 - total_variation(p_t, p_d)
