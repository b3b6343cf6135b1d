"""From logits to a law, and from a law and a uniform to a token."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspark.core.sampling import draw, greedy_tokens, probabilities
from dspark.errors import SamplingError
from dspark.types import SamplingParams

ALMOST_ONE = 1 - 2**-53
INF = torch.inf

# Hundredths: equal or clearly different, so that both sides agree on what is a tie.
logit_rows = st.lists(st.integers(-800, 800).map(lambda n: n / 100) | st.just(-INF), min_size=1, max_size=12).filter(
    lambda row: max(row) > -INF
)
weights = st.lists(st.floats(0, 1) | st.just(0.0), min_size=1, max_size=12).filter(lambda row: sum(row) > 0)


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def naive(logits: Tensor, params: SamplingParams) -> list[float]:
    """The filters in plain Python, one token at a time."""
    weight = [math.exp((x - float(logits.max())) / params.temperature) for x in logits.tolist()]
    if params.top_k:
        floor = sorted(weight, reverse=True)[: params.top_k][-1]
        weight = [w if w >= floor else 0.0 for w in weight]
    total = sum(weight)
    mass, floor = 0.0, 0.0
    for w in sorted(weight, reverse=True):
        if mass < params.top_p:
            floor = w
        mass += w / total
    weight = [w if w >= floor else 0.0 for w in weight]
    weight = [w if w >= params.min_p * max(weight) else 0.0 for w in weight]
    return [w / sum(weight) for w in weight]


@given(
    logit_rows,
    st.floats(0.05, 5),
    st.integers(0, 13),
    st.sampled_from([0.05, 0.3, 0.5, 0.77, 0.95, 1.0]),
    st.sampled_from([0.0, 0.01, 0.2, 0.5, 1.0]),
)
def test_filters_agree_with_plain_python(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    ours = probabilities(row(*logits), params)
    # A threshold that meets a token's mass within rounding may keep or drop it.
    nudged = [
        replace(params, top_p=top_p + up * 1e-9, min_p=min(max(min_p + across * 1e-9, 0), 1))
        for up in (0, -1, 1)
        for across in (0, -1, 1)
    ]
    assert any(torch.allclose(ours, row(*naive(row(*logits), near)), rtol=0, atol=1e-9) for near in nudged)


def test_filters_agree_with_transformers() -> None:
    process = pytest.importorskip("transformers.generation.logits_process", reason="parity with transformers")
    logits = 3 * torch.randn(16, 5000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = process.TemperatureLogitsWarper(0.7)(None, logits)
    for warper in (process.TopKLogitsWarper(300), process.TopPLogitsWarper(0.9), process.MinPLogitsWarper(0.02)):
        scores = warper(None, scores)
    ours = probabilities(logits, SamplingParams(temperature=0.7, top_k=300, top_p=0.9, min_p=0.02))
    torch.testing.assert_close(ours, scores.softmax(dim=-1), rtol=1e-9, atol=1e-12)


def test_rows_are_independent_whatever_their_shape() -> None:
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.8, min_p=0.05)
    together = probabilities(logits, params)
    assert together.dtype == torch.float32
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(together[i, j], probabilities(logits[i, j], params))


def test_ties_with_the_last_kept_token_are_kept() -> None:
    params = SamplingParams(temperature=1.0, top_k=2)
    assert probabilities(row(0, 1, 0, 1, 1), params).tolist() == pytest.approx([0, 1 / 3, 0, 1 / 3, 1 / 3])
    params = SamplingParams(temperature=1.0, top_p=0.3)
    assert probabilities(row(0, 1, 0, 1, 1), params).tolist() == pytest.approx([0, 1 / 3, 0, 1 / 3, 1 / 3])


def test_greedy_is_one_hot_on_the_lowest_tied_id() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 5.0, 5.0]])
    assert probabilities(logits, SamplingParams()).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert greedy_tokens(logits) == [1, 0]


@pytest.mark.parametrize("temperature", [1e-5, 1e30])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    p = probabilities(torch.tensor([60.0, 50.0, -INF]), SamplingParams(temperature=temperature, top_p=1e-300))
    assert p.sum() == 1
    assert p[2] == 0


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1, top_k=1, top_p=0.5, min_p=0.1)])
def test_fully_masked_row_has_no_mass_and_spares_the_others(params: SamplingParams) -> None:
    p = probabilities(torch.tensor([[-INF, -INF], [-INF, 1.0]]), params)
    assert p.tolist() == [[0, 0], [0, 1]]
    with pytest.raises(SamplingError, match="every token is masked"):
        draw(p[0], 0.5)


def test_fully_masked_row_has_no_greedy_token() -> None:
    logits = torch.tensor([[-INF, -INF], [-INF, 1.0]])
    assert greedy_tokens(logits) == [None, 1]


@pytest.mark.parametrize("poison", [math.nan, INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinity_are_refused(poison: float, temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0], [1.0, poison]])
    with pytest.raises(SamplingError, match="NaN or \\+inf"):
        probabilities(logits, SamplingParams(temperature=temperature))
    with pytest.raises(SamplingError, match="NaN or \\+inf"):
        greedy_tokens(logits)


@given(weights, st.floats(0, ALMOST_ONE) | st.sampled_from([0.0, ALMOST_ONE, 5e-324, 0.5]))
def test_draw_never_returns_a_token_without_mass(p: list[float], uniform: float) -> None:
    assert p[draw(row(*p), uniform)] > 0
    single = row(*p).float()
    assert single.sum() == 0 or single[draw(single, uniform)] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draw_gives_each_token_the_interval_of_its_mass(dtype: torch.dtype) -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=dtype)
    edges = {0.0: 1, 0.25 - 2**-54: 1, 0.25: 3, 0.75 - 2**-53: 3, 0.75: 4, ALMOST_ONE: 4}
    assert {u: draw(p, u) for u in edges} == edges


def test_draw_scales_with_unnormalised_mass() -> None:
    assert [draw(row(3, 1), u) for u in (0.0, 0.74, 0.75, ALMOST_ONE)] == [0, 0, 1, 1]


def test_draw_at_the_last_uniform_survives_rounding() -> None:
    # total * uniform rounds up to total here, which lies beyond every interval.
    p = row(0.25, 0.75 + 2**-52, 0.0, 0.0)
    total = p.cumsum(-1)[-1]
    assert total * ALMOST_ONE <= total
    assert draw(p, ALMOST_ONE) == 1
    assert draw(torch.cat((p, p.new_zeros(5))), 1.0) == 1


def test_nucleus_of_a_long_tail_needs_no_full_sort() -> None:
    logits = torch.randn(3, 20000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p = probabilities(logits, SamplingParams(temperature=1, top_p=0.97))
    for kept, full in zip(p, logits.softmax(-1), strict=True):
        ranked = full.sort(descending=True).values
        count = int((ranked.cumsum(-1) - ranked < 0.97).sum())
        assert int((kept > 0).sum()) == count
        assert full[kept > 0].sum() >= 0.97 > full[kept > 0].sum() - full[kept > 0].min()
