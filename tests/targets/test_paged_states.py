"""Any sequence of ragged calls, rollbacks and page assignments leaves the states of fresh caches of their own."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark.nn.compiled.linear import CompiledKernel, Packing
from dspark.nn.pages import PagedCache, PageTable, pages_for
from dspark.targets.checkpoint import build_target, read_directory

KERNELS = ["plain"] + [
    kernel.name for packing in Packing if CompiledKernel.available(packing) for kernel in [CompiledKernel(packing)]
]
LONGEST = 48
STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), min_size=3, max_size=3),
    min_size=1,
    max_size=5,
)
"""For each call and request: tokens to append, positions to roll back after it, and whether unused pages go back."""


@pytest.fixture(scope="module", params=KERNELS)
def target(request, make_model):
    window = {"use_sliding_window": True, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
    model = make_model("Qwen3", num_hidden_layers=2, max_window_layers=1, **window)
    return build_target(
        read_directory(model.directory), torch.bfloat16 if "compiled" in request.param else torch.float32, request.param
    )


class Requests:
    """Three requests on one pool, their committed tokens, and the pages that none of them has."""

    def __init__(self, target, order):
        pool = target.new_pages(3 * pages_for(LONGEST))
        self.free = [order.pop() for _ in range(pool.pages)]
        self.caches = [PagedCache(pool, PageTable(pages_for(LONGEST))) for _ in range(3)]
        self.tokens = [[] for _ in range(3)]

    def append(self, counts):
        """The new tokens of all requests, for which they have pages now."""
        new = []
        for row, (cache, count) in enumerate(zip(self.caches, counts, strict=True)):
            missing = pages_for(cache.length + count) - cache.table.count
            cache.table.extend([self.free.pop() for _ in range(missing)])
            new.append([(13 * row + 7 * len(self.tokens[row]) + 3 * i + count) % 61 for i in range(count)])
            self.tokens[row] += new[-1]
        return torch.tensor([token for tokens in new for token in tokens])

    def roll_back(self, row, count, give_back):
        cache = self.caches[row]
        cache.rollback(max(cache.length - count, 0))
        del self.tokens[row][cache.length :]
        if give_back:
            kept = pages_for(cache.length)
            self.free = [*cache.table.ids[kept : cache.table.count].tolist(), *self.free]
            cache.table.keep(kept)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, order=st.permutations(range(3 * pages_for(LONGEST))))
def test_states_are_those_of_fresh_caches(target, steps, order):
    requests = Requests(target, list(order))
    for step in steps:
        counts = [
            min(count, LONGEST - cache.length) for (count, _, _), cache in zip(step, requests.caches, strict=True)
        ]
        tokens = requests.append(counts)
        if len(tokens):
            output = target.forward_ragged(tokens, requests.caches, counts, (0,))
            _check(target, requests, counts, output)
        for row, (_, back, give_back) in enumerate(step):
            requests.roll_back(row, back, give_back)


def _check(target, requests, counts, output):
    found = torch.cat((output.last_hidden, output.features), dim=1).split(counts)
    for rows, tokens, count in zip(found, requests.tokens, counts, strict=True):
        if count:
            fresh = target.forward(torch.tensor(tokens), target.new_cache(len(tokens)), (0,))
            expected = torch.cat((fresh.last_hidden, fresh.features), dim=1)[-count:]
            if isinstance(target.kernel, CompiledKernel):
                assert torch.equal(rows, expected)
            else:
                torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-4)
