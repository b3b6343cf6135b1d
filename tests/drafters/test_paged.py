"""Drafters on pages and for many requests at once: each request is served as it would be alone."""

from dataclasses import replace

import pytest
import torch

from dspark.drafters.config import HeadKind
from dspark.drafters.packing import pack_drafter
from dspark.errors import CapacityError, CompatibilityError, ConfigError, SamplingError
from dspark.nn.compiled.law_signals import law_signals
from dspark.nn.compiled.linear import CompiledKernel, Packing
from dspark.nn.compiled.stack import CHUNK
from dspark.nn.pages import PagedCache, PagePool
from tests.drafters.tiny import CONFIG, DFLASH, KINDS, PRODUCTION, WINDOWED, drafter, tensors
from tests.nn.rounding import rounded
from tests.targets.paged import paged_caches

ANCHORS = [3, 17, 8]
COUNTS = [(11, 0, 30), (1, 5, 2), (6, 16, 1)]
COMPILED = [None] + [
    kernel for packing in Packing if CompiledKernel.available(packing) for kernel in [CompiledKernel(packing)]
]
EVERY_KERNEL = pytest.mark.parametrize(
    "kernel", COMPILED, ids=lambda kernel: "torch" if kernel is None else kernel.name
)


def made(config, kernel):
    module = drafter(config)
    return module if kernel is None else pack_drafter(module, kernel)


def features(config, counts, seed):
    return tensors(sum(counts), config.features_width, seed=seed)


def contexts(module, caches):
    """Fill `caches` in ragged calls; returns what each was filled with."""
    parts = [[] for _ in caches]
    for seed, counts in enumerate(COUNTS):
        rows = features(module.config, counts, seed)
        module.extend_ragged(rows, caches, counts)
        for part, own in zip(parts, rows.split(counts), strict=True):
            part.append(own)
    return [torch.cat(part) for part in parts]


def drafted(blocks, gamma, requests):
    """Logits and confidences of gamma slots for made-up tokens between them."""
    previous, outputs = torch.tensor(ANCHORS[:requests]), []
    for slot in range(gamma):
        outputs.append(blocks.step(previous))
        previous = (previous * 5 + slot) % 29
    return outputs


def drafted_alone(block, request, gamma):
    previous, outputs = ANCHORS[request], []
    for slot in range(gamma):
        outputs.append(block.step(previous))
        previous = (previous * 5 + slot) % 29
    return outputs


WIDE = replace(CONFIG, markov_rank=32)
"""Vectors of 32 fill torch's loops, whose ends compute sigmoids in other bits."""


@EVERY_KERNEL
@pytest.mark.parametrize("gamma", [4, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_drafted_together_are_the_blocks_alone(kind, gamma, kernel):
    module = made(replace(WIDE, markov_head_type=kind), kernel)
    caches = paged_caches(module, [60] * 3)
    filled = contexts(module, caches)
    together = drafted(module.begin_each(ANCHORS, caches, gamma), gamma, 3)
    for request, rows in enumerate(filled):
        cache = module.new_cache(len(rows))
        module.extend(rows, cache)
        alone = drafted_alone(module.begin(ANCHORS[request], cache, gamma), request, gamma)
        for (logits, confidence), (expected, expected_confidence) in zip(together, alone, strict=True):
            if kernel is None:
                torch.testing.assert_close(logits[request], expected, atol=1e-5, rtol=1e-4)
                assert float(confidence[request]) == pytest.approx(expected_confidence, abs=1e-4)
            else:
                assert torch.equal(logits[request], expected)
                assert float(confidence[request]) == expected_confidence


@pytest.mark.parametrize(
    "config", [CONFIG, DFLASH, WINDOWED, PRODUCTION], ids=["plain", "dflash", "window", "production"]
)
def test_pages_hold_what_contiguous_caches_hold_for_torch(config):
    module = drafter(config)
    caches = paged_caches(module, [60] * 3)
    for cache, rows, anchor in zip(caches, contexts(module, caches), ANCHORS, strict=True):
        contiguous = module.new_cache(len(rows))
        module.extend(rows, contiguous)
        found, expected = (module.begin(anchor, c).hidden for c in (cache, contiguous))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@EVERY_KERNEL
def test_candidates_are_chosen_for_every_block(kernel):
    config = replace(WIDE, markov_head_type=HeadKind.SELECTOR, candidates=5)
    module = made(config, kernel)
    caches = paged_caches(module, [60] * 3)
    contexts(module, caches)
    together = drafted(module.begin_each(ANCHORS, caches, 4), 4, 3)
    for request, cache in enumerate(caches):
        alone = drafted_alone(module.begin(ANCHORS[request], cache, 4), request, 4)
        for (logits, _), (expected, _) in zip(together, alone, strict=True):
            torch.testing.assert_close(logits[request], expected, atol=1e-5, rtol=1e-4)
            assert logits[request].isfinite().sum() == 5


@EVERY_KERNEL
def test_without_heads_there_are_no_confidences(kernel):
    module = made(DFLASH, kernel)
    caches = paged_caches(module, [60] * 3)
    contexts(module, caches)
    assert [confidence for _, confidence in drafted(module.begin_each(ANCHORS, caches, 4), 4, 3)] == [None] * 4


@pytest.mark.skipif(len(COMPILED) == 1, reason="kernels do not compile here: no C++ compiler")
@pytest.mark.parametrize("kernel", COMPILED[1:], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("requests", [1, CHUNK // 3 + 1])
def test_compiled_blocks_are_torchs_in_however_many_calls(kernel, requests):
    """Many blocks of three do not fit one call of the stack, and no block may be parted."""
    module, oracle = pack_drafter(drafter().bfloat16().float(), kernel), drafter().bfloat16().float()
    for linear in (part for part in oracle.modules() if isinstance(part, torch.nn.Linear)):
        if kernel.packing is Packing.BYTES:
            linear.weight.data = rounded(linear.weight.data).float()
    caches, expected = paged_caches(module, [40] * requests), [oracle.new_cache(20) for _ in range(requests)]
    counts = [1 + row % 20 for row in range(requests)]
    rows = features(CONFIG, counts, seed=3)
    for one, those in ((module, caches), (oracle, expected)):
        one.extend_ragged(rows, those, counts)
    anchors = [row % 29 for row in range(requests)]
    found, wanted = (one.blocks_states(anchors, those, 3) for one, those in ((module, caches), (oracle, expected)))
    assert (found - wanted).norm() < (2e-2 if kernel.packing.tiles else 1e-5) * wanted.norm()


@EVERY_KERNEL
def test_full_pages_and_foreign_caches_are_refused(kernel):
    module = made(CONFIG, kernel)
    caches = paged_caches(module, [16, 16])
    rows = features(CONFIG, [20], seed=1)
    with pytest.raises(CapacityError, match="17 more tokens do not fit: 0 of 16"):
        module.extend_ragged(rows, caches, [3, 17])
    assert [cache.length for cache in caches] == [0, 0]
    module.extend_ragged(rows, caches, [4, 16])
    with pytest.raises(CapacityError, match="a block of 4 does not fit behind 16 positions"):
        module.begin_each([1, 2], caches, 4)
    with pytest.raises(ConfigError, match="gamma 5 is outside"):
        module.begin_each([1, 2], caches, 5)
    foreign = PagedCache.alone(PagePool(2, 2, 3, 8), 20)
    with pytest.raises(CompatibilityError, match="another model"):
        module.extend(rows, foreign)


@pytest.mark.parametrize("requests", [1, 3, 30])
@pytest.mark.parametrize("vocabulary", ["whole", "pruned"])
@pytest.mark.parametrize("kernel", COMPILED[1:], ids=lambda kernel: kernel.name)
def test_the_likeliest_drafts_in_one_go_are_those_of_step_by_step(kernel, vocabulary, requests):
    """To the bit, with confidences and what is said of the laws; more blocks than the head multiplies at once, too."""
    kept = None if vocabulary == "whole" else torch.arange(1, 31, 2)
    config = replace(WIDE, markov_head_type=HeadKind.VANILLA, draft_vocab_size=None if kept is None else len(kept))
    module = pack_drafter(drafter(config, kept), kernel)
    caches = paged_caches(module, [40] * requests)
    module.extend_ragged(features(config, [5] * requests, seed=4), caches, [5] * requests)
    anchors = torch.arange(requests) % 29
    found = module.begin_each(anchors.tolist(), caches, 4).likeliest(anchors, 3)
    blocks, previous = module.begin_each(anchors.tolist(), caches, 4), anchors
    for slot in range(3):
        logits, confidence = blocks.step(previous)
        peaks, entropies = law_signals(logits)
        best = logits.argmax(-1)
        previous = best if kept is None else kept[best]
        assert torch.equal(found.tokens[:, slot], previous)
        assert torch.equal(found.confidences[:, slot], confidence)
        assert torch.equal(found.peaks[:, slot], peaks)
        assert torch.equal(found.entropies[:, slot], entropies)


def test_only_a_packed_markov_head_drafts_in_one_go():
    anchors = torch.tensor(ANCHORS)
    kernels = COMPILED[1:2] or [None]
    recurrent = replace(WIDE, markov_head_type=HeadKind.RNN)
    for config, kernel in [(CONFIG, None), (DFLASH, kernels[0]), (recurrent, kernels[0])]:
        module = made(config, kernel)
        blocks = module.begin_each(ANCHORS, paged_caches(module, [40] * 3), 3)
        assert blocks.likeliest(anchors, 3) is None


@pytest.mark.parametrize("kernel", COMPILED[1:2], ids=lambda kernel: kernel.name)
def test_logits_that_are_not_finite_are_refused_in_one_go(kernel):
    module = made(replace(WIDE, markov_head_type=HeadKind.VANILLA), kernel)
    blocks = module.begin_each(ANCHORS, paged_caches(module, [40] * 3), 3)
    blocks.hidden[1, 1, 0] = torch.nan
    with pytest.raises(SamplingError, match="hold NaN or an infinity"):
        blocks.likeliest(torch.tensor(ANCHORS), 3)


@pytest.mark.parametrize("kernel", COMPILED[1:2], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("wrong", [torch.tensor([3, 17, 31]), torch.tensor([3, -1, 8]), torch.tensor([3, 17, 8]).int()])
def test_tokens_that_the_head_does_not_know_are_refused_in_one_go(kernel, wrong):
    module = made(replace(WIDE, markov_head_type=HeadKind.VANILLA), kernel)
    blocks = module.begin_each(ANCHORS, paged_caches(module, [40] * 3), 3)
    with pytest.raises(CompatibilityError, match="found ids"):
        blocks.likeliest(wrong, 3)


@pytest.mark.parametrize("kernel", COMPILED[1:2], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("kept", [torch.arange(15).int(), torch.arange(20, 35)])
def test_a_draft_vocabulary_that_would_be_misread_is_refused(kernel, kept):
    config = replace(WIDE, markov_head_type=HeadKind.VANILLA, draft_vocab_size=15)
    module = pack_drafter(drafter(config, kept % 31), kernel)
    module.draft_token_ids = kept
    with pytest.raises(CompatibilityError, match="found ids"):
        module.chain()
