"""Chain drafters: training-time test and incremental decoding against a rollout written out from the definitions."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dspark.drafters.chain import ChainDrafter
from dspark.drafters.description import describe
from dspark.drafters.eagle3 import Eagle3, Eagle3Config, Eagle3Layer
from dspark.drafters.mtp import MTP, MTPConfig, MTPLayer
from dspark.drafters.registry import extras_for, load_drafter, save_drafter
from dspark.errors import CompatibilityError, ConfigError
from dspark.nn.norm import rms_norm
from dspark.nn.rope import apply_rotary
from dspark.types import TargetInfo
from tests.drafters.tiny import TinyTarget

V, WIDTH, LAYERS = 11, 16, 6
SIZES = {
    "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": V, "num_target_layers": LAYERS,
}  # fmt: skip
KEPT = torch.tensor([7, 0, 2, 9])
LENGTHS = (9, 6)
ANCHORS = torch.tensor([1, 4, 5, 8, 10, 13])
Make = Callable[..., ChainDrafter]


def shared() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(V, WIDTH, generator=generator), torch.randn(V, WIDTH, generator=generator)


def eagle3(kept: Tensor | None = None, gamma: int = 4) -> Eagle3:
    size = None if kept is None else len(kept)
    config = Eagle3Config(**SIZES, target_layer_ids=(0, 2, 4), ttt_length=gamma, draft_vocab_size=size)
    return filled(Eagle3(config, *shared(), kept))


def mtp(kept: Tensor | None = None) -> MTP:
    return filled(MTP(MTPConfig(**SIZES, draft_vocab_size=None if kept is None else len(kept)), *shared(), kept))


def filled(module):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1))
    return module.eval().requires_grad_(False)


KINDS = pytest.mark.parametrize("make", [eagle3, mtp])


def material(module: ChainDrafter, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(features [T, m * d], ids [T], previous [A, G]) of two packed documents."""
    generator = torch.Generator().manual_seed(seed)
    total, taps = sum(LENGTHS), len(module.shape.target_layer_ids)
    tokens = torch.randint(V, (total,), generator=generator)
    previous = torch.randint(V, (len(ANCHORS), module.info.gamma), generator=generator)
    previous[:, 0] = tokens[ANCHORS]
    return torch.randn(total, taps * WIDTH, generator=generator), tokens, previous


def joined(module: ChainDrafter, hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
    """(residual, attention's input) as the papers write them."""
    layer, eps = module.layer, module.shape.rms_norm_eps
    if isinstance(layer, Eagle3Layer):
        parts = rms_norm(embedded, layer.input_layernorm.weight, eps), rms_norm(hidden, layer.hidden_norm.weight, eps)
        return hidden, torch.cat(parts, -1)
    assert isinstance(layer, MTPLayer)
    parts = rms_norm(embedded, layer.enorm.weight, eps), rms_norm(hidden, layer.hnorm.weight, eps)
    projected = torch.cat(parts, -1) @ layer.eh_proj.weight.T
    return projected, rms_norm(projected, layer.input_layernorm.weight, eps)


def whole_layer(module: ChainDrafter, hidden: Tensor, tokens: Tensor) -> Tensor:
    """States [T, d] of all rows at once, under plain causal attention at positions 0 ... T - 1."""
    layer, shape = module.layer, module.shape
    residual, x = joined(module, hidden, module.embedding[tokens])
    attention, rope = layer.self_attn, module.rotary.at(torch.arange(len(x)))
    heads = lambda linear: (x @ linear.weight.T).view(len(x), -1, shape.head_dim)  # noqa: E731
    q = apply_rotary(rms_norm(heads(attention.q_proj), attention.q_norm.weight, shape.rms_norm_eps), *rope)
    k = apply_rotary(rms_norm(heads(attention.k_proj), attention.k_norm.weight, shape.rms_norm_eps), *rope)
    groups = shape.num_attention_heads // shape.num_key_value_heads
    k, v = (t.repeat_interleave(groups, dim=1).transpose(0, 1) for t in (k, heads(attention.v_proj)))
    scores = (q.transpose(0, 1) @ k.transpose(1, 2)) * shape.head_dim**-0.5
    weights = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf).softmax(-1)
    mixed = residual + (weights @ v).transpose(0, 1).flatten(1) @ attention.o_proj.weight.T
    normed = rms_norm(mixed, layer.post_attention_layernorm.weight, shape.rms_norm_eps)
    gate, up, down = (p.weight for p in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj))
    return mixed + (F.silu(normed @ gate.T) * (normed @ up.T)) @ down.T


def rollout(module: ChainDrafter, features: Tensor, tokens: Tensor, position: int, drafts: Tensor) -> Tensor:
    """Logits [G, V_draft] after the anchor `tokens[position]`, token by token, recomputing everything each time."""
    hidden = module.inputs(features[:position])
    following = tokens[1 : position + 1]
    rows = []
    for draft in [*drafts.tolist(), None]:
        state = whole_layer(module, hidden, following)[-1]
        rows.append(rms_norm(state, module.norm.weight, module.shape.rms_norm_eps) @ module.head.T)
        if draft is not None:
            hidden, following = torch.cat((hidden, state[None])), torch.cat((following, torch.tensor([draft])))
    return torch.stack(rows)


@KINDS
@pytest.mark.parametrize("kept", [None, KEPT], ids=["full", "pruned"])
def test_training_time_test_equals_a_naive_rollout(make: Make, kept: Tensor | None) -> None:
    """Every anchor of two packed documents, with arbitrary tokens forced along its chain."""
    module = make(kept)
    features, tokens, previous = material(module)
    states = module.forced_states(features, tokens, ANCHORS, previous, LENGTHS)
    logits = module.draft_logits(states, previous)
    starts = torch.tensor([0, LENGTHS[0]])
    for index, anchor in enumerate(ANCHORS.tolist()):
        start = int(starts[starts <= anchor][-1])
        stop = start + LENGTHS[0 if start == 0 else 1]
        expected = rollout(module, features[start:stop], tokens[start:stop], anchor - start, previous[index, 1:])
        torch.testing.assert_close(logits[index], expected, atol=1e-4, rtol=1e-4)


@KINDS
def test_a_chain_sees_nothing_from_its_anchor_on(make: Make) -> None:
    module = make()
    features, tokens, previous = material(module)
    before = module.forced_states(features, tokens, ANCHORS, previous, LENGTHS)
    for index, anchor in enumerate(ANCHORS.tolist()):
        own = range(0, 9) if anchor < 9 else range(9, 15)
        changed, others = features.clone(), tokens.clone()
        unseen = [j for j in range(len(tokens)) if j >= anchor or j not in own]
        changed[unseen] += 1.0
        others[[j for j in range(len(tokens)) if j > anchor or j not in own]] += 1
        after = module.forced_states(changed, others % V, ANCHORS, previous, LENGTHS)
        assert torch.equal(after[index], before[index]), anchor


@KINDS
def test_a_chain_sees_every_position_before_its_anchor(make: Make) -> None:
    module = make()
    features, tokens, previous = material(module)
    before = module.forced_states(features, tokens, ANCHORS, previous, LENGTHS)
    for index, anchor in ((1, 4), (5, 13)):
        for position in range(0 if anchor < 9 else 9, anchor):
            changed = features.clone()
            changed[position] += 1.0
            after = module.forced_states(changed, tokens, ANCHORS, previous, LENGTHS)
            assert not torch.allclose(after[index, -1], before[index, -1]), (anchor, position)


def test_a_forced_token_reaches_its_own_slot_and_later_ones_of_its_chain_alone() -> None:
    module = eagle3()
    features, tokens, previous = material(module)
    before = module.forced_states(features, tokens, ANCHORS, previous, LENGTHS)
    for slot in range(1, module.info.gamma):
        changed = previous.clone()
        changed[2, slot] = (changed[2, slot] + 1) % V
        moved = (module.forced_states(features, tokens, ANCHORS, changed, LENGTHS) != before).any(-1)
        assert moved[2].tolist() == [k >= slot for k in range(module.info.gamma)]
        assert not moved[torch.arange(len(ANCHORS)) != 2].any()


def engine_features(module: ChainDrafter, features: Tensor, tokens: Tensor) -> Tensor:
    return torch.cat((module.embedding[tokens], features), dim=-1)


@KINDS
@pytest.mark.parametrize("chunk", [1, 3])
def test_drafting_round_by_round_equals_the_rollout(make: Make, chunk: int) -> None:
    """Rounds draft, are rejected, and go on: provisional rows leave no trace."""
    module = make()
    features, tokens, _ = material(module)
    own = engine_features(module, features, tokens)
    cache = module.new_cache(12)
    for first in range(0, 4, chunk):
        module.extend(own[first : min(first + chunk, 4)], cache)
    generator = torch.Generator().manual_seed(8)
    for position in (4, 5, 7, 8):
        module.extend(own[cache.length : position], cache)
        drafts = torch.randint(V, (module.info.gamma - 1,), generator=generator)
        block = module.begin(int(tokens[position]), cache)
        stepped = torch.stack([block.step(t)[0] for t in [int(tokens[position]), *drafts.tolist()]])
        cache.rollback(position)
        torch.testing.assert_close(stepped, rollout(module, features, tokens, position, drafts), atol=1e-4, rtol=1e-4)


@KINDS
def test_a_rolled_back_cache_goes_on_from_where_it_was(make: Make) -> None:
    module = make()
    features, tokens, _ = material(module)
    own = engine_features(module, features, tokens)
    straight, back = module.new_cache(12), module.new_cache(12)
    module.extend(own[:5], straight)
    module.extend(torch.cat((own[:3], own[8:12])), back)
    back.rollback(3)
    module.extend(own[3:5], back)
    found, expected = (module.begin(3, cache).step(3)[0] for cache in (back, straight))
    torch.testing.assert_close(found, expected)


@KINDS
def test_a_chain_needs_a_token_before_its_anchor(make: Make) -> None:
    module = make()
    features, tokens, previous = material(module)
    with pytest.raises(ConfigError, match="anchor no document's first token"):
        module.forced_states(features, tokens, torch.tensor([2, 9]), previous[:2], LENGTHS)
    with pytest.raises(ConfigError, match="no context yet"):
        module.begin(0, module.new_cache(4))
    cache = module.new_cache(4)
    module.extend(engine_features(module, features, tokens)[:1], cache)
    with pytest.raises(ConfigError, match="drafts of one round"):
        module.begin(0, cache, module.info.gamma + 1)
    with pytest.raises(CompatibilityError, match="expected a cache from this drafter"):
        module.begin(0, object())


INFO = TargetInfo("tiny", V, WIDTH, LAYERS, 64, (), "weights", "template")


@pytest.mark.parametrize(("make", "kind"), [(eagle3, "Eagle3"), (mtp, "MTP")])
@pytest.mark.parametrize("kept", [None, KEPT], ids=["full", "pruned"])
def test_a_saved_drafter_comes_back(tmp_path, make: Make, kind: str, kept: Tensor | None) -> None:
    module, target = make(kept), TinyTarget(*shared(), INFO)
    save_drafter(module, tmp_path, extras_for(INFO, name="chained"), torch.float32)
    loaded = load_drafter(tmp_path, target, kernel=None)
    assert (loaded.shape, loaded.info) == (module.shape, replace(module.info, name="chained"))
    features, tokens, previous = material(module)
    logits = [
        m.draft_logits(m.forced_states(features, tokens, ANCHORS, previous, LENGTHS), previous)
        for m in (module, loaded)
    ]
    assert torch.equal(*logits)
    told = describe(tmp_path)
    assert (told.kind, told.layout, told.gamma) == (kind, "chain", module.info.gamma)
    assert told.parameters == sum(p.numel() for p in module.parameters())


@KINDS
def test_a_packed_drafter_drafts_the_same(tmp_path, make: Make) -> None:
    module, target = make(KEPT), TinyTarget(*shared(), INFO)
    save_drafter(module, tmp_path, extras_for(INFO), torch.float32)
    packed = load_drafter(tmp_path, target, kernel="plain")
    features, tokens, _ = material(module)
    found = []
    for drafter in (module, packed):
        cache = drafter.new_cache(12)
        drafter.extend(engine_features(module, features, tokens)[:5], cache)
        block = drafter.begin(3, cache)
        found.append(torch.stack([block.step(t)[0] for t in range(3, 3 + drafter.info.gamma)]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
