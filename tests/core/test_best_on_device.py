"""The likeliest tokens found on a device are those found on the host."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.core.sampling import best_of_rows, best_on_device

SCORES = st.sampled_from([-np.inf, -2.5, 0.0, 1.0, 1.0000001, 7e4, np.inf, np.nan])


@given(st.integers(1, 5).flatmap(lambda width: st.lists(st.lists(SCORES, min_size=width, max_size=width), min_size=1)))
def test_places_and_sizes_are_those_of_the_host(rows):
    logits = torch.tensor(rows, dtype=torch.float32)
    (tokens, best), (expected_tokens, expected) = best_on_device(logits), best_of_rows(logits)
    assert tokens.tolist() == expected_tokens.tolist()
    np.testing.assert_array_equal(best.astype(np.float32), expected)
