"""The few tokens that filters keep are those of the definition in `core.sampling`, found the short way."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark.core import kept_tokens
from dspark.core.kept_tokens import filters, kept_laws
from dspark.core.laws import KeptLaw
from dspark.core.sampling import probabilities
from dspark.errors import SamplingError
from dspark.types import SamplingParams

FILTERS = [
    SamplingParams(temperature=0.2, top_p=0.9),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=1.0, top_p=0.999),
    SamplingParams(temperature=1.0, top_p=1e-9),
    SamplingParams(temperature=1.3, top_k=1),
    SamplingParams(temperature=1.3, top_k=50),
    SamplingParams(temperature=1.3, top_k=700),
    SamplingParams(temperature=0.7, min_p=0.05),
    SamplingParams(temperature=0.7, min_p=1.0),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.8, min_p=0.02),
    SamplingParams(temperature=0.9, top_p=0.8, min_p=0.02),
]


def rows(width: int, scale: float) -> Tensor:
    """Five rows; one with most tokens masked, one with ties everywhere, one with a single token."""
    logits = scale * torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    logits[1, width // 3 :] = -torch.inf
    logits[2] = (logits[2]).round()
    logits[3, 1:] = -torch.inf
    return logits


def spread(laws: list[KeptLaw], width: int) -> Tensor:
    p = torch.zeros(len(laws), width, dtype=torch.float64)
    for row, law in zip(p, laws, strict=True):
        row[torch.from_numpy(law.ids)] = torch.from_numpy(law.masses)
    return p


@pytest.mark.parametrize(
    ("params", "width"),
    [(params, width) for params in FILTERS for width in (7, 300, 8192) if filters(params, width)],
    ids=str,
)
@pytest.mark.parametrize("scale", [0.3, 3.0, 12.0])
def test_laws_are_those_of_the_definition(params: SamplingParams, width: int, scale: float) -> None:
    logits = rows(width, scale)
    found = spread(kept_laws(logits, np.arange(5), params), width)
    # A mass that meets a threshold within rounding may be kept or dropped.
    nudged = [replace(params, top_p=min(params.top_p * (1 + nudge), 1.0)) for nudge in (0.0, 1e-7, -1e-7)]
    expected = [probabilities(logits.double(), near) for near in nudged]
    for i, row in enumerate(found):
        assert any(torch.allclose(row, near[i], rtol=1e-6, atol=1e-9) for near in expected), i


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_a_row_has_the_same_bits_in_any_company(params: SamplingParams) -> None:
    logits = rows(8192, 3.0)
    together = kept_laws(logits, np.arange(5), params)
    for row in range(5):
        (alone,) = kept_laws(logits[row : row + 1], np.array([0]), params)
        (chosen,) = kept_laws(logits, np.array([row]), params)
        for law in (alone, chosen):
            assert law.ids.tolist() == together[row].ids.tolist()
            assert law.masses.tolist() == together[row].masses.tolist()


def test_ids_ascend_and_masses_sum_to_one() -> None:
    for params in FILTERS:
        for law in kept_laws(rows(8192, 3.0), np.arange(5), params):
            assert (np.diff(law.ids) > 0).all()
            assert (law.masses > 0).all()
            assert law.masses.sum() == pytest.approx(1, abs=1e-12)


def test_a_masked_row_has_no_tokens_and_spares_the_others() -> None:
    logits = torch.stack((torch.full((64,), -torch.inf), torch.arange(64.0)))
    for params in FILTERS:
        masked, other = kept_laws(logits, np.arange(2), params)
        assert len(masked.ids) == 0
        assert 63 in other.ids


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_rows_that_are_no_numbers_are_refused_if_they_are_asked_for(poison: float) -> None:
    logits = torch.zeros(2, 128)
    logits[1, 77] = poison
    kept_laws(logits, np.array([0]), FILTERS[0])
    with pytest.raises(SamplingError, match="NaN or \\+inf"):
        kept_laws(logits, np.array([1]), FILTERS[0])


def test_few_tokens_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nucleus of a few tokens above a crowd: what is sorted is of their order, not of the vocabulary's."""
    logits = torch.randn(1, 49152, generator=torch.Generator().manual_seed(0))
    logits[0, :30] += 14
    seen = []
    right = kept_tokens._candidates

    def watched(sets: kept_tokens._Sets, params: SamplingParams) -> kept_tokens._Candidates:
        candidates = right(sets, params)
        seen.append(candidates.weights.shape[1])
        return candidates

    monkeypatch.setattr(kept_tokens, "_candidates", watched)
    for temperature in (0.2, 1.0):
        kept_laws(logits, np.array([0]), SamplingParams(temperature=temperature, top_p=0.9))
    assert len(seen) == 2
    assert max(seen) < 600
