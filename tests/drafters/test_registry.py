"""Loading a drafter for a target: it works, it aliases, and it refuses the wrong target."""

from dataclasses import replace

import pytest
import torch

from dspark.drafters.extras import DrafterExtras
from dspark.drafters.registry import extras_for, load_drafter, save_drafter
from dspark.errors import CompatibilityError
from dspark.nn.kernel_choice import choose_kernel
from tests.drafters.tiny import CONFIG, INFO, TinyTarget, drafter, shared, target, tensors

UNBOUND = DrafterExtras()


def saved(directory, extras=UNBOUND, **options):
    module = drafter()
    save_drafter(module, directory, extras, torch.float32, **options)
    return module


def test_a_loaded_drafter_drafts_like_the_saved_one_and_shares_the_target(tmp_path):
    module, owner = saved(tmp_path, extras_for(INFO, "tiny-dspark")), target()
    loaded = load_drafter(tmp_path, owner, kernel=None)
    features = tensors(5, CONFIG.features_width)
    caches = [m.new_cache(8) for m in (module, loaded)]
    for m, cache in zip((module, loaded), caches, strict=True):
        m.extend(features, cache)
    blocks = [m.begin(3, cache) for m, cache in zip((module, loaded), caches, strict=True)]
    torch.testing.assert_close(blocks[0].step(3), blocks[1].step(3))
    assert loaded.embedding.data_ptr() == owner.embedding_weight.data_ptr()
    assert not any(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_drafter_is_packed_by_default_as_suits_the_targets_weights(tmp_path, dtype):
    saved(tmp_path)
    loaded = load_drafter(tmp_path, TinyTarget(*(tensor.to(dtype) for tensor in shared()), INFO))
    expected = type(choose_kernel("auto", dtype).kernel.pack(torch.ones(2, 2)))
    assert type(loaded.packed_head) is expected
    assert not any(p.requires_grad for p in loaded.parameters())


def test_an_unpacked_drafter_can_be_trained_whatever_the_targets_dtype(tmp_path):
    saved(tmp_path)
    loaded = load_drafter(tmp_path, TinyTarget(*(tensor.bfloat16() for tensor in shared()), INFO), kernel=None)
    assert {p.dtype for p in loaded.requires_grad_(True).parameters()} == {torch.float32}
    loaded.base_logits(loaded.fc(tensors(3, CONFIG.features_width))).sum().backward()
    assert loaded.fc.weight.grad.abs().sum() > 0


def test_the_activations_of_a_kernel_are_honoured(tmp_path):
    saved(tmp_path)
    loaded = load_drafter(tmp_path, TinyTarget(*(tensor.bfloat16() for tensor in shared()), INFO), kernel="plain")
    assert {loaded.embedding.dtype, loaded.head.dtype} == {torch.bfloat16}
    cache = loaded.new_cache(8)
    loaded.extend(tensors(5, CONFIG.features_width), cache)
    assert loaded.begin(3, cache).step(3)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (replace(INFO, hidden_size=32), "hidden_size 16, but tiny has 32"),
        (replace(INFO, vocab_size=32), "vocab_size 31, but tiny has 32"),
        (replace(INFO, num_layers=9), "num_target_layers 8, but tiny has 9"),
        (replace(INFO, weights_hash="cc" * 32), "trained for weights aaaa"),
        (replace(INFO, name="other", weights_hash=""), "trained for 'tiny', but the target is 'other'"),
        (replace(INFO, template_hash="cc" * 32), "chat template bbbb"),
    ],
)
def test_another_target_is_refused(tmp_path, info, message):
    saved(tmp_path, extras_for(INFO))
    with pytest.raises(CompatibilityError, match=message):
        load_drafter(tmp_path, target(info))


def test_equal_weights_under_another_name_are_welcome(tmp_path):
    saved(tmp_path, extras_for(INFO))
    load_drafter(tmp_path, target(replace(INFO, name="other")))


def test_a_stored_embedding_of_another_model_is_noticed(tmp_path):
    saved(tmp_path, include_shared=True)
    embedding, head = shared()
    load_drafter(tmp_path, TinyTarget(embedding * 1.02, head, INFO))  # rounding and quantisation are not foreign
    with pytest.raises(CompatibilityError, match=r"embed_tokens\.weight differs"):
        load_drafter(tmp_path, TinyTarget(embedding.flip(0), head, INFO))
    with pytest.raises(CompatibilityError, match=r"lm_head\.weight differs"):
        load_drafter(tmp_path, TinyTarget(embedding, head.flip(0), INFO))
