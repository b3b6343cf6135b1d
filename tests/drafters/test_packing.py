"""A packed drafter drafts like the plain one, whatever the kernel and the head."""

import pytest
import torch

from dspark.drafters.extras import DrafterExtras
from dspark.drafters.packing import PackedNorm, PackedProduct
from dspark.drafters.registry import load_drafter, save_drafter
from dspark.errors import ConfigError
from dspark.nn.compiled.linear import CompiledKernel
from dspark.nn.linear import HalfKernel, OneDnnKernel
from tests.drafters.tiny import CONFIG, KINDS, drafter, target, tensors, with_head

KERNELS = [
    "plain",
    pytest.param("fp16", marks=pytest.mark.skipif(not HalfKernel.available(), reason="torch without FBGEMM")),
    pytest.param("compiled", marks=pytest.mark.skipif(not CompiledKernel.available(), reason="no C++ compiler")),
    pytest.param(
        "compiled-bf16", marks=pytest.mark.skipif(not CompiledKernel.available(True), reason="no matrix unit")
    ),
    pytest.param("onednn", marks=pytest.mark.skipif(not OneDnnKernel.available(), reason="torch without oneDNN")),
]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_packing_changes_rounding_only(tmp_path, kernel, kind):
    save_drafter(drafter(with_head(kind)), tmp_path, DrafterExtras())
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
