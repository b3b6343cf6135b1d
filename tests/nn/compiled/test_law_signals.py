"""Peak and entropy of draft laws, in one pass, as calibration defines them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.calibration.signals import law_entropy, peak_log_odds
from dspark.nn.compiled.law_signals import law_signals, plain_law_signals


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(2, 70),
    spread=st.sampled_from([0.0, 1.0, 5.0, 30.0]),
    masked=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_both_ways_are_the_definition(rows: int, width: int, spread: float, masked: int, seed: int) -> None:
    logits = spread * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    logits[:, 1 : 1 + min(masked, width - 1)] = -torch.inf
    expected = peak_log_odds(logits.numpy()), law_entropy(logits.numpy())
    for found in (law_signals(logits), plain_law_signals(logits)):
        np.testing.assert_allclose(found[0], expected[0], rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(found[1], expected[1], rtol=2e-5, atol=2e-5)
