"""The compiled stack against the torch layers on the same bfloat16 weights, and against itself in pieces."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from dspark.errors import CapacityError, CompatibilityError, ConfigError
from dspark.nn.compiled.linear import CompiledKernel, Packing
from dspark.nn.compiled.stack import CHUNK
from dspark.nn.pages import PagedCache, PageLayout, PagePool
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.kv_cache import KVCache
from dspark.types import AFTER_NORM
from tests.nn.rounding import rounded
from tests.targets.paged import paged_caches

pytestmark = pytest.mark.skipif(not CompiledKernel.available(), reason="kernels do not compile here: no C++ compiler")

KERNELS = [
    kernel.name for packing in Packing if CompiledKernel.available(packing) for kernel in [CompiledKernel(packing)]
]
ROUNDING = {"compiled": 1e-4, "compiled-bf16": 5e-2, "compiled-int8": 5e-2}
"""Largest differences from float32 layers: tiles round activations to bfloat16, as attention in bytes does."""

WHOLE = {"compiled": 1e-5, "compiled-bf16": 1.5e-2, "compiled-int8": 1.5e-2}
"""The same over all states together, relative to their size."""

TOKENS = torch.tensor([5, 9, 2, 44, 31, 8, 8, 60, 17, 1, 25, 50, 3, 12])
TAPS = (-1, 1, 0, 1)


@pytest.fixture(params=KERNELS)
def kernel(request):
    return request.param


def load(tiny, kernel):
    return build_target(read_directory(tiny.directory), torch.bfloat16, kernel)


def oracle_of(tiny, kernel):
    """Torch layers in float32 on the weights that `kernel` multiplies."""
    checkpoint = read_directory(tiny.directory)
    if kernel != "compiled-int8":
        return build_target(checkpoint, torch.bfloat16, "onednn")
    weights = {name: weight.bfloat16().float() for name, weight in checkpoint.weights.items()}
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    rounded_weights = {name: rounded(w).float() if name.endswith("proj.weight") else w for name, w in weights.items()}
    config = {**checkpoint.config, "tie_word_embeddings": False}
    weights = {**rounded_weights, "lm_head.weight": rounded(head).float()}
    return build_target(replace(checkpoint, config=config, weights=weights), torch.float32, "onednn")


def run(target, pieces=(14,), tokens=TOKENS):
    cache = target.new_cache(len(tokens))
    outputs = [target.forward(piece, cache, TAPS) for piece in tokens.split(pieces)]
    last_hidden = torch.cat([output.last_hidden for output in outputs])
    return target.logits(last_hidden), torch.cat([output.features for output in outputs]), cache


def assert_close_together(found, expected, kernel):
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < WHOLE[kernel] * other.norm()


@pytest.mark.parametrize("pieces", [(14,), (1,) * 14, (6, 1, 4, 1, 2)])
def test_it_computes_what_the_torch_layers_compute(variant, pieces, kernel):
    logits, features, cache = run(load(variant, kernel), pieces)
    expected_logits, expected_features, expected = run(oracle_of(variant, kernel))
    torch.testing.assert_close(logits, expected_logits, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])
    torch.testing.assert_close(features, expected_features, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])
    for layer in range(3):
        for rows, expected_rows in zip(cache.read(layer, 0, 14), expected.read(layer, 0, 14), strict=True):
            torch.testing.assert_close(rows.float(), expected_rows, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])


@pytest.mark.parametrize("pieces", [(1,) * 14, (7, 7), (8, 2, 4), (3, 11)])
def test_the_bits_of_a_position_do_not_depend_on_what_runs_with_it(variant, pieces, kernel):
    target = load(variant, kernel)
    for found, expected in zip(run(target, pieces)[:2], run(target)[:2], strict=True):
        assert torch.equal(found, expected)


def test_long_prompts_run_in_chunks(llama, kernel):
    tokens = torch.arange(2 * CHUNK + 5) % 60
    found = run(load(llama, kernel), (len(tokens),), tokens)[:2]
    expected = run(oracle_of(llama, kernel), (len(tokens),), tokens)[:2]
    assert_close_together(found, expected, kernel)


@pytest.fixture(scope="module", params=[(32, 96), (416, 448)], ids=str)
def whole_tiles(request, make_model):
    """Models whose MLP is as wide as tiles are, so that its gate is part of a product; one deeper than a part."""
    hidden, intermediate = request.param
    tiny = make_model("Llama", hidden_size=hidden, intermediate_size=intermediate)
    with torch.no_grad():
        for matrix in (weight for weight in tiny.model.parameters() if weight.dim() == 2):
            matrix.mul_((32 / hidden) ** 0.5)  # wide layers of large weights would magnify every rounding
    tiny.model.save_pretrained(tiny.directory)
    return tiny


@pytest.mark.parametrize("threads", [1, 2])
def test_a_gate_within_its_product_is_the_gate_behind_it_and_each_rows_own(whole_tiles, threads, kernel):
    tokens, before = torch.arange(50) % 60, torch.get_num_threads()
    target = load(whole_tiles, kernel)
    expected = run(oracle_of(whole_tiles, kernel), (len(tokens),), tokens)[:2]
    torch.set_num_threads(threads)
    try:
        found = run(target, (len(tokens),), tokens)[:2]
        in_pieces = run(target, (1, 17, 32), tokens)[:2]
    finally:
        torch.set_num_threads(before)
    assert_close_together(found, expected, kernel)
    for one, other in zip(found, in_pieces, strict=True):
        assert torch.equal(one, other)


def test_it_is_the_choice_for_bfloat16_weights_without_bfloat16_instructions(llama):
    assert isinstance(load(llama, "auto").kernel, CompiledKernel)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(llama, threads, kernel):
    target = load(llama, kernel)
    expected, before = run(target)[0], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(run(target)[0], expected)
    finally:
        torch.set_num_threads(before)


def test_rows_of_several_requests_have_the_bits_of_each_alone(variant, kernel):
    target = load(variant, kernel)
    prompts = [TOKENS[:3], TOKENS[:9], TOKENS[4:5]]
    together, alone = ([target.new_cache(12) for _ in prompts] for _ in range(2))
    for prompt, *caches in zip(prompts, together, alone, strict=True):
        for cache in caches:
            target.forward(prompt, cache)
    tokens = torch.tensor([7, 8, 9])
    output = target.forward_ragged(tokens, together, [1, 1, 1], TAPS)
    for row, cache in enumerate(alone):
        expected = target.forward(tokens[row : row + 1], cache, TAPS)
        assert torch.equal(output.last_hidden[row], expected.last_hidden[0])
        assert torch.equal(output.features[row], expected.features[0])
        for layer in range(3):
            for found, kept in zip(
                together[row].read(layer, 0, cache.length), cache.read(layer, 0, cache.length), strict=True
            ):
                assert torch.equal(found, kept)


def test_what_the_head_reads_can_be_tapped_too(llama, kernel):
    target = load(llama, kernel)
    output = target.forward(TOKENS, target.new_cache(20), (AFTER_NORM, 0, -1))
    plain = target.forward(TOKENS, target.new_cache(20), (0, -1))
    expected = torch.cat((plain.last_hidden, plain.features), dim=1)
    assert torch.equal(output.features, expected)
    assert torch.equal(output.last_hidden, plain.last_hidden)


def test_threads_may_decode_at_once(llama, kernel):
    target, prompts = load(llama, kernel), [TOKENS, TOKENS.flip(0)]
    expected = [run(target, (1,) * 14, prompt)[0] for prompt in prompts]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            found = list(pool.map(lambda prompt: run(target, (1,) * 14, prompt)[0], prompts))
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_cache_of_another_shape_is_refused(llama, kernel):
    target, config = load(llama, kernel), load(llama, kernel).config
    fitting = PageLayout.TILES if kernel == "compiled-bf16" else PageLayout.VECTORS
    others = [
        KVCache(config.num_layers, config.num_kv_heads, 20, config.head_dim, torch.float32),
        alone(PagePool(2, config.num_layers, config.num_kv_heads + 1, config.head_dim, fitting)),
        alone(PagePool(2, config.num_layers, config.num_kv_heads, config.head_dim)),
    ]
    for other in others:
        with pytest.raises(CompatibilityError, match="belongs to another target"):
            target.forward(TOKENS, other)


def alone(pool):
    return PagedCache.alone(pool, 20)


STEPS = [(9, 1, 0), (1, 4, 14), (6, 0, 30), (2, 5, 1), (0, 40, 3), (1, 1, 1)]
"""Tokens of three requests in six calls: prompts in chunks, verification prefixes and single tokens, mixed."""


def ragged(target, caches, steps=STEPS):
    """Last states and features of every request, position by position."""
    states = [[] for _ in caches]
    for step, counts in enumerate(steps):
        tokens = [
            (torch.arange(cache.length, cache.length + n) * 7 + row + step) % 60
            for row, (cache, n) in enumerate(zip(caches, counts, strict=True))
        ]
        output = target.forward_ragged(torch.cat(tokens), caches, counts, TAPS)
        both = torch.cat((output.last_hidden, output.features), dim=1).split(list(counts))
        for request, rows in zip(states, both, strict=True):
            request.append(rows)
    return [torch.cat(request) for request in states]


def one_by_one(target, caches, steps=STEPS):
    """The same, every request and step by itself."""
    states = []
    for row, cache in enumerate(caches):
        outputs = []
        for step, counts in enumerate(steps):
            tokens = (torch.arange(cache.length, cache.length + counts[row]) * 7 + row + step) % 60
            if len(tokens):
                outputs.append(target.forward(tokens, cache, TAPS))
        states.append(torch.cat([torch.cat((o.last_hidden, o.features), dim=1) for o in outputs]))
    return states


@pytest.mark.parametrize("kind", ["onednn", *KERNELS])
def test_ragged_calls_on_pages_are_the_requests_alone_in_memory_of_their_own(variant, kind):
    target = load(variant, kind)
    found = ragged(target, paged_caches(target, [60] * 3))
    expected = one_by_one(target, [target.new_cache(60) for _ in range(3)])
    for one, other in zip(found, expected, strict=True):
        if kind in KERNELS:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_ragged_calls_compute_what_the_torch_layers_compute(variant, kernel):
    target, oracle = load(variant, kernel), oracle_of(variant, kernel)
    found = ragged(target, paged_caches(target, [60] * 3))
    expected = ragged(oracle, [oracle.new_cache(60) for _ in range(3)])
    assert_close_together(found, expected, kernel)


def test_a_long_context_is_read_as_torch_reads_it(llama, kernel):
    """Many pages, so that every way of grouping them is taken."""
    target, oracle = load(llama, kernel), oracle_of(llama, kernel)
    steps = [(150, 33), (1, 7), (8, 60)]
    found = ragged(target, paged_caches(target, [160, 104]), steps)
    expected = ragged(oracle, [oracle.new_cache(160) for _ in range(2)], steps)
    assert_close_together(found, expected, kernel)
    for one, other in zip(found, one_by_one(target, [target.new_cache(160) for _ in range(2)], steps), strict=True):
        assert torch.equal(one, other)


def test_what_a_page_held_before_leaves_no_trace(llama, kernel):
    target = load(llama, kernel)
    fresh, used = target.new_cache(40), target.new_cache(40)
    target.forward(torch.arange(40) % 60, used)
    used.rollback(0)
    for piece in TOKENS.split((3, 1, 10)):
        found, expected = (target.forward(piece, cache, TAPS) for cache in (used, fresh))
        assert torch.equal(found.last_hidden, expected.last_hidden)


def test_counts_must_be_those_of_the_tokens_and_full_pages_refuse(llama, kernel):
    target = load(llama, kernel)
    caches = paged_caches(target, [16, 32])
    with pytest.raises(ConfigError, match=r"found 14 tokens for 2 caches, but counts of \[3, 4\]"):
        target.forward_ragged(TOKENS, caches, [3, 4])
    target.forward_ragged(TOKENS, caches, [4, 10])
    with pytest.raises(CapacityError, match="13 more tokens do not fit: 4 of 16"):
        target.forward_ragged(TOKENS, caches, [13, 1])
    assert [cache.length for cache in caches] == [4, 10]
