"""The native decoder against transformers on the same weights, and against itself in pieces."""

import pytest
import torch

from dspark.errors import CapacityError, CompatibilityError, ConfigError
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.kv_cache import KVCache
from dspark.types import AFTER_NORM

TOKENS = torch.tensor([5, 9, 2, 44, 31, 8, 8, 60, 17, 1, 25, 50, 3, 12])
TAPS = (-1, 0, 1)


def load(tiny, dtype=torch.float32, kernel="auto"):
    return build_target(read_directory(tiny.directory), dtype, kernel)


@torch.no_grad()
def reference(tiny):
    return tiny.model(TOKENS.unsqueeze(0), output_hidden_states=True)


def test_states_and_logits_agree_with_transformers(variant):
    target, expected = load(variant), reference(variant)
    output = target.states(TOKENS.unsqueeze(0), taps=TAPS)
    torch.testing.assert_close(target.logits(output.last_hidden), expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output.last_hidden, expected.hidden_states[-1], atol=1e-4, rtol=1e-4)
    features = torch.cat([expected.hidden_states[layer + 1] for layer in TAPS], dim=-1)
    torch.testing.assert_close(output.features, features, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pieces", [(14,), (1,) * 14, (6, 1, 4, 1, 2), (3, 11)])
def test_pieces_give_the_same_as_the_whole(variant, pieces):
    target, expected = load(variant), reference(variant)
    cache = target.new_cache(len(TOKENS))
    outputs = [target.forward(piece, cache, TAPS) for piece in TOKENS.split(pieces)]
    logits = target.logits(torch.cat([output.last_hidden for output in outputs]))
    torch.testing.assert_close(logits, expected.logits[0], atol=1e-4, rtol=1e-4)
    features = torch.cat([expected.hidden_states[layer + 1] for layer in TAPS], dim=-1)[0]
    torch.testing.assert_close(torch.cat([o.features for o in outputs]), features, atol=1e-4, rtol=1e-4)
    assert cache.length == len(TOKENS)


def test_continuing_after_a_rollback_equals_never_having_left(variant):
    target = load(variant)
    cache, fresh = target.new_cache(20), target.new_cache(20)
    target.forward(TOKENS[:6], cache)
    target.forward(torch.tensor([33, 33, 33, 33]), cache)
    cache.rollback(6)
    target.forward(TOKENS[:6], fresh)
    continued, expected = (target.forward(TOKENS[6:9], c, TAPS) for c in (cache, fresh))
    torch.testing.assert_close(continued.last_hidden, expected.last_hidden, atol=0, rtol=0)
    torch.testing.assert_close(continued.features, expected.features, atol=0, rtol=0)


def test_many_requests_at_once_are_as_each_alone(variant):
    target, lengths = load(variant), (6, 1, 9)
    together, alone = ([target.new_cache(10) for _ in lengths] for _ in range(2))
    for first, one, other in zip(lengths, together, alone, strict=True):
        target.forward(TOKENS[:first], one)
        target.forward(TOKENS[:first], other)
    tokens = torch.tensor([7, 22, 41])
    output = target.forward_ragged(tokens, together, [1, 1, 1], TAPS)
    expected = [target.forward(token[None], cache, TAPS) for token, cache in zip(tokens, alone, strict=True)]
    torch.testing.assert_close(output.last_hidden, torch.cat([e.last_hidden for e in expected]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(output.features, torch.cat([e.features for e in expected]), atol=1e-5, rtol=1e-4)
    assert [cache.length for cache in together] == [7, 2, 10]
    with pytest.raises(CapacityError, match="1 more tokens"):
        target.forward_ragged(tokens, together, [1, 1, 1])
    assert [cache.length for cache in together] == [7, 2, 10]


def test_layer_id_zero_is_the_output_of_the_first_decoder_layer(llama):
    seen = []
    hook = llama.model.model.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    reference(llama)
    hook.remove()
    output = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    target = load(llama)
    features = target.forward(TOKENS, target.new_cache(20), (0,)).features
    torch.testing.assert_close(features, output.reshape(features.shape), atol=1e-4, rtol=1e-4)


def test_features_come_in_the_order_of_the_taps(llama):
    target = load(llama)
    forth, back = (target.states(TOKENS.unsqueeze(0), taps=taps).features for taps in ((0, 1), (1, 0)))
    torch.testing.assert_close(forth, back.roll(target.info.hidden_size, -1), atol=0, rtol=0)


def test_what_the_head_reads_can_be_tapped_too(llama):
    target = load(llama, kernel="plain")
    output = target.forward(TOKENS, target.new_cache(20), (AFTER_NORM, 0, -1))
    width = target.info.hidden_size
    assert torch.equal(output.features[:, :width], output.last_hidden)
    plain = target.forward(TOKENS, target.new_cache(20), (0, -1))
    assert torch.equal(output.features[:, width:], plain.features)
    assert torch.equal(output.last_hidden, plain.last_hidden)


@pytest.mark.parametrize("layer", [2, 3, -3])
def test_the_last_layer_and_ids_outside_the_model_are_refused(llama, layer):
    target = load(llama)
    cache = target.new_cache(20)
    with pytest.raises(ConfigError, match=f"layer id {layer} cannot be tapped.*-1 .* to 1"):
        target.forward(TOKENS, cache, (0, layer))
    assert cache.length == 0


def test_right_padding_changes_nothing_and_its_states_are_zero(llama):
    target = load(llama)
    batch = torch.stack((TOKENS, TOKENS.flip(0)))
    batch[0, 9:] = 0
    output = target.states(batch, torch.tensor([9, 14]), (0,))
    alone = target.states(TOKENS[:9].unsqueeze(0), taps=(0,))
    torch.testing.assert_close(output.last_hidden[0, :9], alone.last_hidden[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.features[0, :9], alone.features[0], atol=1e-5, rtol=1e-5)
    assert not output.last_hidden[0, 9:].any()
    assert output.last_hidden[1, 9:].any()


def test_states_can_be_trained_on(llama):
    """States are ordinary tensors (no inference mode), so that a drafter's graph may hold them."""
    target = load(llama)
    weight = torch.ones(target.info.hidden_size, requires_grad=True)
    (target.states(TOKENS.unsqueeze(0)).last_hidden * weight).sum().backward()
    assert weight.grad is not None


def test_a_full_cache_refuses_more_and_stays_as_it_was(llama):
    target = load(llama)
    cache = target.new_cache(8)
    target.forward(TOKENS[:6], cache)
    with pytest.raises(CapacityError, match="3 more tokens do not fit: 6 of 8"):
        target.forward(TOKENS[:3], cache)
    assert cache.length == 6


@pytest.mark.parametrize("length", [-1, 7])
def test_a_cache_rolls_back_only_to_what_it_holds(llama, length):
    target = load(llama)
    cache = target.new_cache(8)
    target.forward(TOKENS[:6], cache)
    with pytest.raises(CapacityError, match=f"roll back to {length} positions: the cache holds 6"):
        cache.rollback(length)


def test_a_foreign_cache_is_refused(llama):
    with pytest.raises(CompatibilityError, match="belongs to another target"):
        load(llama).forward(TOKENS, KVCache(7, 2, 20, 8, torch.float32))


@pytest.mark.parametrize("kernel", ["fp16", "onednn"])
def test_packed_kernels_compute_with_the_bfloat16_weights(llama, kernel):
    packed, plain = load(llama, torch.bfloat16, kernel), load(llama, torch.bfloat16, "plain")
    exact = load(llama, torch.float32, "plain")
    rounded = {name: tensor.bfloat16().float() for name, tensor in exact._weights.items()}
    wide = type(exact)(exact.config, exact.info, rounded, exact.kernel)
    logits = [t.logits(t.states(TOKENS.unsqueeze(0)).last_hidden) for t in (packed, wide, plain)]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-4)
    assert (logits[2] - logits[1]).abs().max() > 1e-3, "plain bfloat16 rounds activations; else this test shows nothing"


def test_layer_weights_go_by_hugging_face_names(llama):
    target = load(llama)
    expected = dict(llama.model.model.layers[1].state_dict())
    weights = target.layer_weights(1)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert torch.equal(target.lm_head_weight, llama.model.lm_head.weight)
    assert torch.equal(target.embed(TOKENS), llama.model.model.embed_tokens(TOKENS))
