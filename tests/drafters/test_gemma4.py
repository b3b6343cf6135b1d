"""The Gemma4 drafter's layers are transformers' Gemma4 layers, and its directory is DeepSpec's."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dspark.drafters.attention import attend_cached
from dspark.drafters.cache import DraftCache
from dspark.drafters.config import HeadKind
from dspark.drafters.extras import DrafterExtras
from dspark.drafters.formats.deepspec import build_dspark, open_checkpoint
from dspark.drafters.gemma4 import Gemma4Config, Gemma4DSpark, Gemma4Layer
from dspark.drafters.packing import pack_drafter
from dspark.drafters.registry import save_drafter
from dspark.errors import ConfigError, FormatError
from dspark.nn.linear import PlainKernel
from dspark.nn.rope import Rotary
from tests.drafters.tiny import CONFIG, shared, tensors

GEMMA = Gemma4Config(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    vocab_size=31, num_target_layers=8, target_layer_ids=(1, 4, 6), mask_token_id=30, block_size=4, markov_rank=6,
    enable_confidence_head=True, rope_theta=1e4, attention_k_eq_v=True, final_logit_softcapping=3.0,
)  # fmt: skip
KINDS = [replace(GEMMA, attention_k_eq_v=shares) for shares in (True, False)]


def randomise(module: nn.Module, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator) + (tensor.ndim == 1))


def drafter(config: Gemma4Config = GEMMA, kept: Tensor | None = None) -> Gemma4DSpark:
    module = Gemma4DSpark(config, *shared(config), kept)
    for part in (module.fc, module.hidden_norm, module.layers, module.norm, module.markov_head, module.confidence_head):
        if part is not None:
            randomise(part)
    return module


def reference(config: Gemma4Config) -> tuple[nn.Module, object]:
    """transformers' layer of the same shape, and its modelling module."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`: transformers is the reference")
    settings = transformers.Gemma4TextConfig(
        hidden_size=config.hidden_size, intermediate_size=config.intermediate_size, num_hidden_layers=1,
        num_attention_heads=config.num_attention_heads, num_key_value_heads=1, head_dim=4, vocab_size=31,
        global_head_dim=config.head_dim, num_global_key_value_heads=config.num_key_value_heads,
        attention_k_eq_v=config.attention_k_eq_v, layer_types=["full_attention"], hidden_size_per_layer_input=0,
        rms_norm_eps=config.rms_norm_eps, attn_implementation="eager",
    )  # fmt: skip
    module = __import__("transformers.models.gemma4.modeling_gemma4", fromlist=["x"])
    return module.Gemma4TextDecoderLayer(settings, 0).eval(), module


def pair(config: Gemma4Config) -> tuple[Gemma4Layer, nn.Module]:
    theirs, _ = reference(config)
    ours = Gemma4Layer(config, 0)
    randomise(ours)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def rope_pair(config: Gemma4Config, positions: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(ours, theirs): transformers does not negate half of the sines."""
    cos, sin = Rotary.plain(config.head_dim, config.rope_theta).at(positions)
    half = config.head_dim // 2
    return (cos, sin), (cos, torch.cat((-sin[..., :half], sin[..., half:]), -1))


def heads_of(config: Gemma4Config) -> Gemma4Config:
    """transformers has the global number of key heads with shared keys alone."""
    return config if config.attention_k_eq_v else replace(config, num_key_value_heads=1)


@pytest.mark.parametrize("config", KINDS, ids=["k_eq_v", "own_v"])
def test_a_layer_is_transformers_layer(config: Gemma4Config) -> None:
    config = heads_of(config)
    ours, theirs = pair(config)
    assert set(ours.state_dict()) == set(theirs.state_dict())
    x = tensors(1, 5, 16, seed=3)
    rope, their_rope = rope_pair(config, torch.arange(7, 12)[None])
    cache = DraftCache(config, 0, 5, x)
    found = ours(x, rope, attend_cached(cache.keys[0], cache.values[0], 0))
    with torch.no_grad():
        expected = theirs(x.clone(), None, {}, position_embeddings=their_rope, attention_mask=torch.zeros(1, 1, 5, 5))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("config", KINDS, ids=["k_eq_v", "own_v"])
def test_attention_over_context_is_transformers_attention(config: Gemma4Config) -> None:
    config = heads_of(config)
    ours, theirs = pair(config)
    context, block = tensors(6, 16, seed=3), tensors(1, 4, 16, seed=4)
    rope, _ = rope_pair(config, torch.arange(6))
    cache = DraftCache(config, 6, 4, block)
    cache.append(0, *ours.self_attn.keys_values(context, rope))
    block_rope, _ = rope_pair(config, torch.arange(6, 10)[None])
    found = ours.self_attn(block, block_rope, attend_cached(cache.keys[0], cache.values[0], 6))
    _, their_rope = rope_pair(config, torch.arange(10)[None])
    with torch.no_grad():
        everything = torch.cat((context[None], block), 1)
        expected = theirs.self_attn(everything, their_rope, torch.zeros(1, 1, 10, 10), {})[0][:, 6:]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_embeddings_are_scaled_and_logits_capped_as_transformers_does() -> None:
    _, module = reference(GEMMA)
    embedding, head = shared(GEMMA)
    scaled = module.Gemma4TextScaledWordEmbedding(31, 16, 0, embed_scale=16**0.5)
    with torch.no_grad():
        scaled.weight.copy_(embedding)
    ours, tokens = drafter(), torch.tensor([3, 9])
    expected = scaled(torch.tensor([[3, 30, 30], [9, 30, 30]]))
    torch.testing.assert_close(ours.embed_blocks(tokens, 3), expected)
    hidden = tensors(2, 16, seed=5)
    logits = hidden @ head.T
    torch.testing.assert_close(ours.base_logits(hidden), torch.tanh(logits / 3.0) * 3.0)
    assert float(logits.abs().max()) > 3.0


@pytest.mark.parametrize("head", [kind for kind in HeadKind if kind is not HeadKind.SELECTOR])
def test_training_and_drafting_compute_the_same(head: HeadKind) -> None:
    module = drafter(replace(GEMMA, markov_head_type=head))
    features, tokens = tensors(9, 48, seed=8), torch.tensor([4, 8, 1, 30, 2, 7, 7, 5, 11])
    previous = torch.tensor([[7, 5, 11, 3]])  # the anchor stands at position 5
    hidden = module.forced_states(features, tokens, torch.tensor([5]), previous)
    logits = module.draft_logits(hidden, previous)
    assert int(tokens[5]) == 7
    cache = module.new_cache(9)
    module.extend(features[:5], cache)
    block = module.begin(7, cache)
    stepped = torch.stack([block.step(int(token))[0] for token in previous[0]])
    torch.testing.assert_close(stepped, logits[0], atol=1e-5, rtol=1e-5)
    supervised = torch.ones(1, 4, dtype=torch.bool)
    torch.testing.assert_close(module.factors(hidden, previous, supervised).dense(), logits[0])
    packed = pack_drafter(module.eval().requires_grad_(False), PlainKernel(torch.float32))
    cache = packed.new_cache(9)
    packed.extend(features[:5], cache)
    torch.testing.assert_close(packed.begin(7, cache).step(7)[0], logits[0, 0].detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "config",
    [*KINDS, replace(GEMMA, final_logit_softcapping=None), replace(GEMMA, markov_rank=0, enable_confidence_head=False)],
)
def test_round_trip(tmp_path: Path, config: Gemma4Config) -> None:
    module = drafter(config)
    save_drafter(module, tmp_path, DrafterExtras(target_name="tiny"), torch.float32)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == config
    assert checkpoint.architecture == "Gemma4DSparkModel"
    again = build_dspark(checkpoint, *shared(config), torch.float32)
    assert isinstance(again, Gemma4DSpark)
    for name, tensor in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_deepspecs_own_directory_is_read(tmp_path: Path) -> None:
    """Its config.json is the target's: sliding layers' sizes stand beside those of the full layers."""
    save_drafter(drafter(), tmp_path, DrafterExtras(), torch.float32)
    path = tmp_path / "config.json"
    data = json.loads(path.read_text())
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e4}
    sliding = {"rope_type": "default", "rope_theta": 99.0}
    data |= {"rope_parameters": {"full_attention": rope, "sliding_attention": sliding}, "head_dim": 4}
    data |= {"num_key_value_heads": 1, "use_bidirectional_attention": "vision", "sliding_window": 512}
    for key in ("dspark", "hidden_act", "use_sliding_window"):
        del data[key]
    path.write_text(json.dumps(data))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == replace(GEMMA, rope_theta=1e4)
    assert any("partial_rotary_factor" in note for note in checkpoint.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enable_moe_block": True}, "enable_moe_block"),
        ({"hidden_size_per_layer_input": 256}, "per-layer inputs"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
        ({"attention_k_eq_v": False}, "missing.*v_proj"),
    ],
)
def test_other_variants_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    save_drafter(drafter(), tmp_path, DrafterExtras(), torch.float32)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(FormatError, match=message):
        open_checkpoint(tmp_path)


def test_a_missing_scalar_is_noticed(tmp_path: Path) -> None:
    save_drafter(drafter(), tmp_path, DrafterExtras(), torch.float32)
    tensors_of = load_file(tmp_path / "model.safetensors")
    del tensors_of["layers.1.layer_scalar"]
    save_file(tensors_of, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"missing.*layers\.1\.layer_scalar"):
        open_checkpoint(tmp_path)


def test_bad_caps_and_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="final_logit_softcapping is 0"):
        replace(GEMMA, final_logit_softcapping=0.0)
    with pytest.raises(ConfigError, match="not a multiple"):
        replace(GEMMA, num_key_value_heads=3)
    with pytest.raises(ConfigError, match="drop candidates, sliding_window"):
        replace(GEMMA, sliding_window=8)
    assert CONFIG != GEMMA
