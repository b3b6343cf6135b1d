"""Distances between distributions: hand values and identities."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.core.distances import acceptance_rate, total_variation

weights = st.lists(st.integers(0, 20), min_size=5, max_size=5).filter(any)


def law(integers):
    tensor = torch.tensor(integers, dtype=torch.float64)
    return tensor / tensor.sum()


def test_the_appendix_example():
    p_t, p_d = torch.tensor([0.7, 0.3], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert math.isclose(total_variation(p_t, p_d), 0.2)
    assert math.isclose(acceptance_rate(p_t, p_d), 0.8)


@given(weights, weights)
def test_acceptance_is_the_overlap(left, right):
    p, q = law(left), law(right)
    tv = float(total_variation(p, q))
    assert math.isclose(float(acceptance_rate(p, q)), float(torch.minimum(p, q).sum()), abs_tol=1e-12)
    assert math.isclose(tv, float(total_variation(q, p)), abs_tol=1e-15)
    assert 0 <= tv <= 1 + 1e-12


def test_leading_axes_are_kept():
    assert total_variation(torch.ones(2, 3, 4) / 4, torch.ones(2, 3, 4) / 4).shape == (2, 3)
