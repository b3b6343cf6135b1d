"""Forwards rounded up to a tier give their real rows what they give them without."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.engine.engine_options import EngineOptions
from dspark.engine.tiers import Padding, Tiers
from dspark.errors import ConfigError
from dspark.nn.pages import PagedCache, PageTable
from dspark.types import SamplingParams
from tests.engine.paged import PagedTarget
from tests.engine.test_paged_engine import STEM, V, alone, engine, run
from tests.targets.paged import paged_caches

SIZES = st.sets(st.integers(1, 60), min_size=1).map(lambda sizes: tuple(sorted(sizes)))


@given(SIZES, st.integers(1, 80))
def test_a_tier_is_the_least_size_that_holds_the_rows(sizes, rows):
    tiers, fitting = Tiers(sizes), [size for size in sizes if size >= rows]
    assert tiers.fit(rows) == (min(fitting) if fitting else rows)
    assert 0 <= tiers.fit(rows) - rows <= tiers.padding


@given(st.integers(1, 2000))
def test_default_tiers_reach_as_far_as_asked_and_no_further_than_needed(most):
    tiers = Tiers.up_to(most)
    assert tiers.sizes[-1] >= most
    assert len(tiers.sizes) == 1 or tiers.sizes[-2] < most
    assert all(tiers.fit(rows) < 2 * rows for rows in range(1, most + 1))


def test_default_tiers_are_those_of_the_manual():
    assert Tiers.up_to(100).sizes == (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112)


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 2), (4, 2)])
def test_tiers_ascend(sizes):
    with pytest.raises(ConfigError, match="expected ascending numbers of rows"):
        Tiers(sizes)


@settings(max_examples=20)
@given(SIZES, st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=4))
def test_padded_rows_change_no_real_one(sizes, requests):
    """The target's rows follow from every position that the request's own pages hold."""
    tiers, target = Tiers(sizes), PagedTarget(V, 1)
    capacities = [length + count for length, count in requests]
    *caches, spare = paged_caches(target, [*capacities, max(tiers.padding, 1)])
    expected = paged_caches(target, capacities)
    counts = [count for _, count in requests]
    for own, other, (length, _) in zip(caches, expected, requests, strict=True):
        for cache in (own, other):
            target.forward_ragged(torch.tensor(STEM[:length], dtype=torch.long), [cache], [length])
    tokens = torch.tensor(STEM[: sum(counts)], dtype=torch.long)
    table = PageTable(spare.table.count)
    table.extend(spare.table.ids[: spare.table.count].tolist())
    padded = Padding(tiers, PagedCache(spare.pool, table)).forward(target, tokens, caches, counts, (0, 1))
    plain = target.forward_ragged(tokens, expected, counts, (0, 1))
    assert torch.equal(padded.last_hidden, plain.last_hidden)
    assert torch.equal(padded.features, plain.features)
    assert [cache.length for cache in caches] == capacities


def test_the_engine_says_the_same_in_tiers_and_runs_no_other_sizes(monkeypatch):
    sizes, rows = (4, 20, 50), []
    forward = PagedTarget.forward_ragged
    monkeypatch.setattr(
        PagedTarget, "forward_ragged", lambda self, ids, *rest: rows.append(len(ids)) or forward(self, ids, *rest)
    )
    core = engine(tiers=Tiers(sizes), max_batched_tokens=50)
    prompts = [STEM[:37], STEM[5:9], STEM[:60], STEM[20:21]]
    params = [SamplingParams(temperature=t, seed=3, max_tokens=17) for t in (0.0, 1.0, 0.0, 1.0)]
    numbers = [core.add(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    results, steps = run(core)
    assert set(rows) == set(sizes)
    assert len(rows) == len(steps)
    for number, prompt, own in zip(numbers, prompts, params, strict=True):
        assert results[number].token_ids == alone(prompt, own)


def test_graphs_are_refused_until_they_have_run_somewhere():
    with pytest.raises(ConfigError, match="not yet verified on a GPU; run benchmarks/gpu_check.py --graphs"):
        EngineOptions(cuda_graphs=True)
