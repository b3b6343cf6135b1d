"""The native decoder with attention over pages for all requests together, and on another device than the CPU."""

import pytest
import torch

from dspark.errors import CompatibilityError, ConfigError
from dspark.nn.kernel_choice import choose_kernel
from dspark.nn.paged_attention import gathered_attention
from dspark.nn.ragged_batch import RaggedBatch, Room
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.native import NativeTarget
from dspark.targets.registry import load_target
from tests.nn.one_device import OneDevice
from tests.targets.paged import paged_caches

TAPS = (-1, 0, 1)
META = torch.device("meta")
COUNTS = [(9, 1, 17), (1, 5, 3), (4, 1, 1)]


def with_attention(target):
    return NativeTarget(
        target.config, target.info, target._weights, target.kernel, attention=gathered_attention
    )  # fmt: skip


def ids(count, seed):
    return torch.randint(61, (count,), generator=torch.Generator().manual_seed(seed))


def test_attention_over_pages_gives_the_states_of_every_request(variant):
    target = build_target(read_directory(variant.directory), torch.float32, "plain")
    together = with_attention(target)
    caches, expected = paged_caches(together, [32] * 3), paged_caches(target, [32] * 3)
    for seed, counts in enumerate(COUNTS):
        tokens = ids(sum(counts), seed)
        found, wanted = together.forward_ragged(tokens, caches, counts, TAPS), [
            target.forward(own, cache, TAPS) for own, cache in zip(tokens.split(counts), expected, strict=True)
        ]  # fmt: skip
        states = torch.cat([output.last_hidden for output in wanted])
        torch.testing.assert_close(found.last_hidden, states, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.features, torch.cat([o.features for o in wanted]), atol=1e-4, rtol=1e-4)
        assert [cache.length for cache in caches] == [cache.length for cache in expected]


def test_a_padded_batch_gives_the_rows_of_the_batch(llama):
    target = with_attention(build_target(read_directory(llama.directory), torch.float32, "plain"))
    caches, tokens = paged_caches(target, [32] * 2), ids(7, 1)
    pool = caches[0].pool
    batches = [RaggedBatch.of(caches, (3, 4), target.device, room) for room in (None, Room(5, 4))]
    plain, padded = (target.run_batch(tokens, pool, batch, TAPS).last_hidden for batch in batches)
    torch.testing.assert_close(padded, plain, atol=1e-5, rtol=1e-5)


def test_nothing_of_a_forward_lives_elsewhere(variant):
    """One forgotten `device=` fails here."""
    target = build_target(read_directory(variant.directory), torch.bfloat16, device=META)
    caches, alone = paged_caches(target, [32] * 3), target.new_cache(20)
    with OneDevice():
        for counts in COUNTS:
            output = target.forward_ragged(ids(sum(counts), 0), caches, counts, TAPS)
            logits = target.logits(output.last_hidden)
        target.forward(ids(5, 0), alone)
        states = target.states(ids(12, 0).view(2, 6), torch.tensor([6, 2]), TAPS)
    made = (output.last_hidden, output.features, logits, states.features, caches[0].pool.data, alone.pool.data)
    assert {tensor.device for tensor in made} == {META}
    assert target.kernel.name == "plain"
    assert target.kernel.activation_dtype is torch.bfloat16


def test_caches_of_another_device_and_devices_that_are_not_here_are_refused(llama):
    here, there = (build_target(read_directory(llama.directory), torch.float32, "plain", device)
                   for device in (torch.device("cpu"), META))  # fmt: skip
    with pytest.raises(CompatibilityError, match="another target"):
        here.forward_ragged(ids(2, 0), paged_caches(there, [8]), [2])
    with pytest.raises(ConfigError, match="device 'gpu' does not exist"):
        load_target(llama.directory, device="gpu")
    with pytest.raises(ConfigError, match="device 'cuda:99' is not here"):
        load_target(llama.directory, device="cuda:99")
    with pytest.raises(ConfigError, match="runs on processors only"):
        choose_kernel("compiled", torch.bfloat16, device=META)
    assert load_target(llama.directory, device="meta").embedding_weight.device == META
