"""The compiled stack against the torch layers on the same bfloat16 weights, and against itself in pieces."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dspark.errors import CompatibilityError
from dspark.nn.compiled.linear import CompiledKernel
from dspark.nn.compiled.stack import CHUNK
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.kv_cache import KVCache
from dspark.types import AFTER_NORM

pytestmark = pytest.mark.skipif(not CompiledKernel.available(), reason="kernels do not compile here: no C++ compiler")

KERNELS = [
    kernel.name for tiles in (False, True) if CompiledKernel.available(tiles) for kernel in [CompiledKernel(tiles)]
]
ROUNDING = {"compiled": 1e-4, "compiled-bf16": 5e-2}
"""Largest differences from float32 layers: a matrix unit rounds activations to bfloat16."""

TOKENS = torch.tensor([5, 9, 2, 44, 31, 8, 8, 60, 17, 1, 25, 50, 3, 12])
TAPS = (-1, 1, 0, 1)


@pytest.fixture(params=KERNELS)
def kernel(request):
    return request.param


def load(tiny, kernel):
    return build_target(read_directory(tiny.directory), torch.bfloat16, kernel)


def run(target, pieces=(14,), tokens=TOKENS):
    cache = target.new_cache(len(tokens))
    outputs = [target.forward(piece, cache, TAPS) for piece in tokens.split(pieces)]
    last_hidden = torch.cat([output.last_hidden for output in outputs])
    return target.logits(last_hidden), torch.cat([output.features for output in outputs]), cache


@pytest.mark.parametrize("pieces", [(14,), (1,) * 14, (6, 1, 4, 1, 2)])
def test_it_computes_what_the_torch_layers_compute(variant, pieces, kernel):
    logits, features, cache = run(load(variant, kernel), pieces)
    expected_logits, expected_features, expected = run(load(variant, "onednn"))
    torch.testing.assert_close(logits, expected_logits, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])
    torch.testing.assert_close(features, expected_features, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])
    torch.testing.assert_close(cache.whole_keys, expected.whole_keys, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])
    torch.testing.assert_close(cache.whole_values, expected.whole_values, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])


@pytest.mark.parametrize("pieces", [(1,) * 14, (7, 7), (8, 2, 4), (3, 11)])
def test_the_bits_of_a_position_do_not_depend_on_what_runs_with_it(variant, pieces, kernel):
    target = load(variant, kernel)
    for found, expected in zip(run(target, pieces)[:2], run(target)[:2], strict=True):
        assert torch.equal(found, expected)


def test_long_prompts_run_in_chunks(llama, kernel):
    tokens = torch.arange(2 * CHUNK + 5) % 60
    logits, features, _ = run(load(llama, kernel), (len(tokens),), tokens)
    expected_logits, expected_features, _ = run(load(llama, "onednn"), (len(tokens),), tokens)
    torch.testing.assert_close(logits, expected_logits, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])
    torch.testing.assert_close(features, expected_features, atol=ROUNDING[kernel], rtol=ROUNDING[kernel])


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
    output = target.forward_each(tokens, together, TAPS)
    for row, cache in enumerate(alone):
        expected = target.forward(tokens[row : row + 1], cache, TAPS)
        assert torch.equal(output.last_hidden[row], expected.last_hidden[0])
        assert torch.equal(output.features[row], expected.features[0])
        assert torch.equal(together[row].whole_keys, cache.whole_keys)


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
    other = KVCache(config.num_layers, config.num_kv_heads + 1, 20, config.head_dim, torch.float32)
    with pytest.raises(CompatibilityError, match="belongs to another target"):
        target.forward(TOKENS, other)
