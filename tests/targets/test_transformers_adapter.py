"""The adapter agrees with the native decoder, and refuses models whose state cannot be rolled back."""

import pytest
import torch
from torch.distributed.tensor import DTensor

from dspark.errors import CapacityError, CompatibilityError, ConfigError
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.transformers_adapter import TransformersTarget, load_transformers
from dspark.training.world import World
from dspark.types import AFTER_NORM
from tests.targets.conftest import SIZES
from tests.training.gloo import gloo

transformers = pytest.importorskip("transformers")

TOKENS = torch.tensor([5, 9, 2, 44, 31, 8, 8, 60, 17, 1, 25, 50, 3, 12])
TAPS = (-1, 0, 1)


def adapt(tiny):
    return load_transformers(tiny.directory, "tiny", torch.float32)


def test_it_agrees_with_the_native_decoder_in_pieces_and_after_rollback(variant):
    adapter, native = adapt(variant), build_target(read_directory(variant.directory, "tiny"), torch.float32)
    assert adapter.info == native.info
    assert torch.equal(adapter.embedding_weight, native.embedding_weight)
    assert torch.equal(adapter.lm_head_weight, native.lm_head_weight)
    outputs = []
    for target in (adapter, native):
        cache = target.new_cache(20)
        target.forward(TOKENS[:8], cache)
        cache.rollback(6)
        pieces = [target.forward(piece, cache, TAPS) for piece in TOKENS[6:].split((3, 1, 4))]
        assert cache.length == 14
        outputs.append(
            (target.logits(torch.cat([p.last_hidden for p in pieces])), torch.cat([p.features for p in pieces]))
        )
    for found, expected in zip(*outputs, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_what_the_head_reads_can_be_tapped_too(llama):
    target = TransformersTarget(llama.model, "tiny")
    output = target.forward(TOKENS, target.new_cache(20), (0, AFTER_NORM))
    assert torch.equal(output.features[:, target.info.hidden_size :], output.last_hidden)


def test_no_hook_is_left_behind(llama):
    def hooks():
        return [(len(layer._forward_hooks), len(layer._forward_pre_hooks)) for layer in llama.model.model.layers]

    before = hooks()  # transformers has its own
    target = TransformersTarget(llama.model, "tiny")
    with pytest.raises(IndexError):
        target.forward(torch.tensor([99]), target.new_cache(4), (-1, 0))
    assert hooks() == before


def test_other_families_run_through_the_adapter(make_model):
    config = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    target = TransformersTarget(model, "gpt2")
    output = target.forward(TOKENS, target.new_cache(20), TAPS)
    with torch.no_grad():
        expected = model(TOKENS.unsqueeze(0), output_hidden_states=True)
    torch.testing.assert_close(target.logits(output.last_hidden), expected.logits[0], atol=1e-5, rtol=1e-5)
    features = torch.cat([expected.hidden_states[layer + 1] for layer in TAPS], dim=-1)[0]
    torch.testing.assert_close(output.features, features, atol=1e-5, rtol=1e-5)


TWO_LAYERS = SIZES | {"num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("family", "fields", "kind"),
    [
        ("Lfm2", TWO_LAYERS | {"layer_types": ["conv", "full_attention"]}, "conv"),
        ("Qwen3Next", TWO_LAYERS | {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ("Mamba", {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2}, ""),
    ],
)
def test_models_with_other_state_are_refused_by_name(family, fields, kind):
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**fields))
    with pytest.raises(
        CompatibilityError, match=rf"hybrid \(model_type {model.config.model_type}\).*{kind}.*rolled back"
    ):
        TransformersTarget(model, "hybrid")


def test_a_head_that_scales_its_logits_is_found_out(make_model):
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim"}
    model = transformers.GraniteForCausalLM(transformers.GraniteConfig(**sizes, logits_scaling=8.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    with pytest.raises(CompatibilityError, match="GraniteForCausalLM does not compute logits as head"):
        TransformersTarget(model, "granite")


def test_limits_are_those_of_the_native_decoder(llama):
    target = TransformersTarget(llama.model, "tiny")
    cache = target.new_cache(8)
    target.forward(TOKENS[:6], cache)
    with pytest.raises(CapacityError, match="3 more tokens do not fit"):
        target.forward(TOKENS[:3], cache)
    with pytest.raises(CapacityError, match="roll back to 7"):
        cache.rollback(7)
    with pytest.raises(ConfigError, match="layer id 2"):
        target.forward(TOKENS[:1], cache, (2,))
    assert cache.length == 6


def small_llama() -> TransformersTarget:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return TransformersTarget(transformers.LlamaForCausalLM(config).eval(), "small")


@pytest.mark.parametrize("batch", [1, 2])
def test_padded_sequences_have_the_states_of_each_alone(batch):
    target = small_llama()
    tokens, lengths = torch.stack([TOKENS, TOKENS.flip(0)])[:batch], torch.tensor([14, 9])[:batch]
    output = target.states(tokens, lengths, TAPS)
    assert output.features.shape == (batch, 14, 3 * 32)
    for row, length in enumerate(lengths.tolist()):
        alone = target.forward(tokens[row, :length], target.new_cache(20), TAPS)
        torch.testing.assert_close(output.last_hidden[row, :length], alone.last_hidden, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output.features[row, :length], alone.features, atol=1e-5, rtol=1e-5)
        assert not output.last_hidden[row, length:].any()
        assert not output.features[row, length:].any()


def sharded_states():
    """States of a target in shards, the same of it whole, and what this process keeps of its layers, before and after.

    Both ways of running it, twice: a layer that ran has to be in shards again.
    """
    target = small_llama()
    tokens, lengths = torch.stack([TOKENS, TOKENS.flip(0)]), torch.tensor([14, 9])

    def run():
        output = target.states(tokens, lengths, TAPS)
        decoded = target.forward(TOKENS, target.new_cache(20), TAPS)
        return output.last_hidden, output.features, target.logits(decoded.last_hidden)

    def kept():
        parameters = [p for layer in target._layers for p in layer.parameters()]
        return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in parameters)

    expected, before = run(), kept()
    target.shard(World.of(torch.distributed.group.WORLD).mesh())
    return [*run(), *run()], [*expected, *expected], before, kept()


def test_layers_in_shards_compute_what_whole_ones_do():
    for found, expected, before, after in gloo(2, sharded_states):
        assert after * 2 == before
        assert all(ours.equal(theirs) for ours, theirs in zip(found, expected, strict=True))
