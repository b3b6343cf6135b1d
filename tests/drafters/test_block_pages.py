"""Blocks of many requests in one attention over pages, and drafters on another device than the CPU."""

import pytest
import torch

from dspark.drafters.packing import pack_drafter
from dspark.drafters.registry import extras_for, load_drafter, save_drafter
from dspark.nn.linear import PlainKernel
from dspark.nn.paged_attention import gathered_attention
from tests.drafters.test_paged import ANCHORS, COUNTS, contexts, drafted, features
from tests.drafters.tiny import CONFIG, DFLASH, DFLASH2, INFO, INGREDIENTS, TinyTarget, drafter, shared
from tests.nn.one_device import OneDevice
from tests.targets.paged import paged_caches

META = torch.device("meta")


@pytest.mark.parametrize("config", [CONFIG, DFLASH, DFLASH2, *INGREDIENTS])
@pytest.mark.parametrize("gamma", [4, 1])
def test_blocks_attend_together_as_one_after_another(config, gamma):
    apart, together = drafter(config), drafter(config)
    together.attention = gathered_attention
    expected, caches = (paged_caches(module, [60] * 3) for module in (apart, together))
    for module, those in ((apart, expected), (together, caches)):
        contexts(module, those)
    assert [cache.length for cache in caches] == [cache.length for cache in expected]
    found, wanted = (
        module.begin_each(ANCHORS, those, gamma).hidden for module, those in ((together, caches), (apart, expected))
    )
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.fixture
def saved(tmp_path):
    save_drafter(drafter(), tmp_path, extras_for(INFO), torch.float32)
    return tmp_path


def test_a_loaded_drafter_lives_with_its_target(saved):
    """One forgotten `device=` fails here."""
    target = TinyTarget(*(tensor.to(META, torch.bfloat16) for tensor in shared()), INFO)
    module = load_drafter(saved, target)
    assert module.attention is gathered_attention
    caches, alone = paged_caches(module, [60] * 3), module.new_cache(20)
    with OneDevice():
        for counts in COUNTS:
            module.extend_ragged(features(CONFIG, counts, 0).to(META), caches, counts)
        outputs = drafted(module.begin_each(ANCHORS, caches, 4), 4, 3)
        module.extend(features(CONFIG, [5], 0).to(META), alone)
        hidden = module.begin(3, alone).hidden
    assert {tensor.device for output in outputs for tensor in output} == {hidden.device} == {META}


def test_on_the_cpu_nothing_changes(saved):
    assert load_drafter(saved, TinyTarget(*shared(), INFO), None).attention is None


def test_packed_plain_products_attend_together_too():
    apart, together = (pack_drafter(drafter(), PlainKernel()) for _ in range(2))
    together.attention = gathered_attention
    outputs = []
    for module in (apart, together):
        caches = paged_caches(module, [60] * 3)
        contexts(module, caches)
        outputs.append(torch.cat([logits for logits, _ in drafted(module.begin_each(ANCHORS, caches, 4), 4, 3)]))
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-4)
