"""Distances between distributions: hand values, identities, and zeros."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.core.distances import acceptance_rate, kl_divergence, total_variation

weights = st.lists(st.integers(0, 20), min_size=5, max_size=5).filter(any)


def law(integers):
    tensor = torch.tensor(integers, dtype=torch.float64)
    return tensor / tensor.sum()


def test_the_appendix_example():
    p_t, p_d = torch.tensor([0.7, 0.3], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert math.isclose(total_variation(p_t, p_d), 0.2)
    assert math.isclose(acceptance_rate(p_t, p_d), 0.8)
    assert math.isclose(kl_divergence(p_t, p_d), 0.7 * math.log(1.4) + 0.3 * math.log(0.6))


@given(weights, weights)
def test_acceptance_is_the_overlap_and_pinsker_holds(left, right):
    p, q = law(left), law(right)
    tv, kl = float(total_variation(p, q)), float(kl_divergence(p, q))
    assert math.isclose(float(acceptance_rate(p, q)), float(torch.minimum(p, q).sum()), abs_tol=1e-12)
    assert math.isclose(tv, float(total_variation(q, p)), abs_tol=1e-15)
    assert 0 <= tv <= 1 + 1e-12
    assert kl >= 2 * tv * tv - 1e-12


def test_kl_takes_zeros_for_what_they_are():
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    assert math.isclose(float(kl_divergence(p, q)), math.log(2), rel_tol=1e-6)
    assert float(kl_divergence(q, p)) == math.inf
    assert float(kl_divergence(p, p)) == 0.0


def test_leading_axes_are_kept():
    assert total_variation(torch.ones(2, 3, 4) / 4, torch.ones(2, 3, 4) / 4).shape == (2, 3)
