"""Laws of a token: masses, draws and what is left above another law, against dense arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.core.laws import FullLaw, KeptLaw, Law, dense, draw_each, draw_from, draw_places, one_token
from dspark.core.rejection import TokenRejection, residual, survives
from dspark.core.row_laws import row_laws
from dspark.core.sampling import draw, probabilities
from dspark.errors import SamplingError
from dspark.types import SamplingParams

V = 6
ALMOST_ONE = 1 - 2**-53
masses = st.lists(st.integers(0, 5), min_size=V, max_size=V).filter(any)
uniforms = st.floats(0, ALMOST_ONE) | st.sampled_from([0.0, ALMOST_ONE])
KNOWN = np.array([4, 0, 5, 2])


def kept(weights: list[int]) -> KeptLaw:
    p = np.array(weights) / sum(weights)
    return KeptLaw(p.nonzero()[0], p[p > 0])


def full(weights: list[int]) -> FullLaw:
    return FullLaw(np.array(weights) / sum(weights))


def pruned(weights: list[int]) -> FullLaw:
    """Over four of the six tokens, out of order; uniform if those have no weight."""
    p = np.array(weights, dtype=np.float64)[KNOWN]
    return FullLaw(p / p.sum() if p.sum() > 0 else np.full(4, 0.25), KNOWN)


@settings(max_examples=40, deadline=None)
@given(masses, masses, st.sampled_from([kept, full]), st.sampled_from([kept, full, pruned]), st.integers(0, V - 1))
def test_laws_agree_with_dense_ones(p_weights, q_weights, kind_p, kind_q, draft) -> None:  # type: ignore[no-untyped-def]
    p, q = kind_p(p_weights), kind_q(q_weights)
    p_full, q_full = dense(p, V), dense(q, V)
    assert [p.mass(token) for token in range(V)] == p_full.tolist()
    assert [q.mass(token) for token in range(V)] == q_full.tolist()
    (threshold,) = TokenRejection().thresholds(p_full[None], q_full[None], [draft])
    for uniform in (0.0, 0.3, threshold, ALMOST_ONE):
        assert survives(p, q, draft, uniform) == (uniform < threshold)
    rest = dense(p.excess(q), V)
    torch.testing.assert_close(rest / rest.sum(), residual(p_full, q_full))


@given(masses, uniforms, st.sampled_from([kept, full]))
def test_draws_agree_with_dense_ones(weights: list[int], uniform: float, kind) -> None:  # type: ignore[no-untyped-def]
    law: Law = kind(weights)
    token = draw_from(law, uniform)
    assert law.mass(token) > 0
    near = {draw(dense(law, V), min(max(uniform + nudge, 0.0), ALMOST_ONE)) for nudge in (0.0, 1e-12, -1e-12)}
    assert token in near


def test_groups_find_the_same_place_as_one_sum() -> None:
    random = np.random.default_rng(0)
    p = random.random((40, 2048)) * (random.random((40, 2048)) < 0.1)
    p[:, 700:1300] = 0
    u = np.concatenate((random.random(36), [0.0, ALMOST_ONE, 0.5, 1.0]))
    places = draw_places(p, u)
    assert (p[np.arange(40), places] > 0).all()
    assert places[:36].tolist() == [draw(torch.from_numpy(row), x) for row, x in zip(p[:36], u[:36], strict=True)]
    assert places[36] == p[36].nonzero()[0][0]
    assert places[39] == p[39].nonzero()[0][-1]


@pytest.mark.parametrize("width", [256, 257, 1000, 4096])
def test_draws_follow_the_law_whatever_the_width(width: int) -> None:
    p = np.random.default_rng(width).random(width).astype(np.float32)
    grid = (np.arange(4000) + 0.5) / 4000
    places = draw_places(np.repeat(p[None], 4000, axis=0), grid)
    edges = p.astype(np.float64).cumsum() / p.sum(dtype=np.float64)
    assert (np.diff(places) >= 0).all()
    assert np.abs(edges[places] - grid).max() < 1.1 / width * 2 + 1e-6


def test_laws_without_mass_give_nothing() -> None:
    for law in (FullLaw(np.zeros(4)), KeptLaw(np.zeros(0, dtype=np.int64), np.zeros(0))):
        with pytest.raises(SamplingError, match="every token is masked"):
            draw_from(law, 0.5)


def test_laws_of_both_kinds_are_drawn_together() -> None:
    laws = [one_token(4), full([0, 1, 1, 0, 0, 0]), kept([0, 0, 1, 3, 0, 0]), full([0, 0, 0, 0, 0, 1])]
    assert draw_each(laws, [0.9, 0.6, 0.3, 0.0]) == [0, 2, 1, 5]


PARAMS = [SamplingParams(temperature=t, top_p=p) for t in (0.2, 1.0, 1.7) for p in (1.0, 0.9)]


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("width", [37, 8192, 50001])
def test_row_laws_are_the_definition_and_keep_their_bits_in_any_company(params: SamplingParams, width: int) -> None:
    logits = 3 * torch.randn(4, width, generator=torch.Generator().manual_seed(1))
    logits[2, ::3] = -torch.inf
    threads = torch.get_num_threads()
    together = [dense(law, width) for law in row_laws(logits, range(4), params) if law is not None]
    torch.testing.assert_close(torch.stack(together).float(), probabilities(logits, params), rtol=2e-4, atol=1e-7)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for row in range(4):
                (alone,) = row_laws(logits[row : row + 1], [0], params)
                (chosen,) = row_laws(logits, [row], params)
                for law in (alone, chosen):
                    assert law is not None
                    assert torch.equal(dense(law, width), together[row])
    finally:
        torch.set_num_threads(threads)


def test_masked_rows_have_no_law_and_numbers_beyond_are_refused() -> None:
    logits = torch.stack((torch.full((64,), -torch.inf), torch.arange(64.0)))
    for params in PARAMS:
        masked, other = row_laws(logits, range(2), params)
        assert masked is None
        assert other is not None
        logits_with_nan = logits.clone()
        logits_with_nan[1, 3] = torch.nan
        with pytest.raises(SamplingError, match="NaN or \\+inf"):
            list(row_laws(logits_with_nan, range(2), params))
