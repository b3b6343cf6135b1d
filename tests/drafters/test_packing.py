"""A packed drafter drafts like the plain one, whatever the kernel and the head."""

import pytest
import torch

from dspark.drafters.extras import DrafterExtras
from dspark.drafters.packing import PackedNorm, PackedProduct
from dspark.drafters.registry import load_drafter, save_drafter
from dspark.errors import ConfigError
from dspark.nn.compiled.linear import CompiledKernel, Packing
from dspark.nn.linear import HalfKernel, OneDnnKernel
from tests.drafters.tiny import (
    CONFIG,
    CONVOLVED,
    DFLASH2,
    EXTENDED,
    KINDS,
    MIXED,
    PRODUCTION,
    STREAMED,
    WINDOWED,
    drafter,
    target,
    tensors,
    with_head,
)

KERNELS = [
    "plain",
    pytest.param("fp16", marks=pytest.mark.skipif(not HalfKernel.available(), reason="torch without FBGEMM")),
    pytest.param("compiled", marks=pytest.mark.skipif(not CompiledKernel.available(), reason="no C++ compiler")),
    pytest.param(
        "compiled-bf16", marks=pytest.mark.skipif(not CompiledKernel.available(Packing.TILES), reason="no matrix unit")
    ),
    pytest.param("onednn", marks=pytest.mark.skipif(not OneDnnKernel.available(), reason="torch without oneDNN")),
]


BEYOND_QWEN3 = [WINDOWED, STREAMED]
SENSITIVE = [CONVOLVED, MIXED, DFLASH2, PRODUCTION]
"""Rounding errors are multiplied with each other, or send slots elsewhere: compared where products are float32."""


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("config", [*map(with_head, KINDS), *BEYOND_QWEN3])
def test_packing_changes_rounding_only(tmp_path, config, kernel):
    _check_packed(tmp_path, config, kernel)


@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[-1]])
@pytest.mark.parametrize("config", SENSITIVE)
def test_packing_sends_slots_to_the_same_experts_and_candidates(tmp_path, config, kernel):
    _check_packed(tmp_path, config, kernel)


def _check_packed(tmp_path, config, kernel):
    save_drafter(drafter(config), tmp_path, DrafterExtras())
    features, steps = tensors(6, CONFIG.features_width), []
    plain, packed = load_drafter(tmp_path, target(), kernel=None), load_drafter(tmp_path, target(), kernel)
    for module in (plain, packed):
        cache = module.new_cache(8)
        module.extend(features, cache)
        block = module.begin(3, cache)
        steps.append([block.step(token) for token in (3, 9, 30, 1)])
    # The tiny target's head is no bfloat16 matrix; a matrix unit rounds activations, too.
    tolerance = {"compiled": 8e-2, "compiled-bf16": 1.6e-1}.get(kernel, 2e-2)
    for (logits, confidence), (other, also) in zip(*steps, strict=True):
        torch.testing.assert_close(other, logits, atol=tolerance, rtol=2e-3)
        assert also == pytest.approx(confidence, abs=tolerance)


@pytest.mark.skipif(not CompiledKernel.available(), reason="no C++ compiler")
@pytest.mark.parametrize("config", EXTENDED)
def test_layers_beyond_qwen3_are_not_compiled_as_if_they_were_plain(tmp_path, config):
    save_drafter(drafter(config), tmp_path, DrafterExtras())
    assert (load_drafter(tmp_path, target(), "compiled").compiled is None) == (not config.has_plain_layers)


def test_no_plain_matrix_or_norm_is_left(tmp_path):
    save_drafter(drafter(), tmp_path, DrafterExtras())
    packed = load_drafter(tmp_path, target())
    kinds = [type(module) for module in packed.modules()]
    assert kinds.count(PackedProduct) == 1 + 2 * 7 + 1 + 1
    assert kinds.count(PackedNorm) == 2 + 2 * 4
    assert torch.nn.Linear not in kinds
    assert packed.packed_head is not None


def test_a_packed_drafter_is_not_saved_over_a_whole_one(tmp_path):
    save_drafter(drafter(), tmp_path, DrafterExtras())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    packed = load_drafter(tmp_path, target())
    with pytest.raises(ConfigError, match="packed drafter"):
        save_drafter(packed, tmp_path, DrafterExtras())
    with pytest.raises(ConfigError, match="packed drafter"):
        save_drafter(packed, tmp_path / "new", DrafterExtras())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
