"""The backbone: training equals inference, and nothing sees what it must not."""

from dataclasses import replace

import pytest
import torch

from dspark.drafters.config import DrafterConfig
from dspark.drafters.dspark import DSpark
from dspark.errors import CapacityError, CompatibilityError
from tests.drafters.tiny import CONFIG, CONVOLVED, EXTENDED, PRODUCTION, WINDOWED, drafter, shared, tensors

LENGTH = 20
FEATURES = tensors(LENGTH, CONFIG.features_width, seed=5)
TOKENS = torch.arange(LENGTH) % 29
ANCHORS = torch.tensor([3, 9, 10, 17])


BOTH = replace(CONVOLVED, sliding_window=5)
EVERY = pytest.mark.parametrize("config", [CONFIG, BOTH, PRODUCTION], ids=["plain", "convolved", "production"])


def states(features=FEATURES, tokens=TOKENS, anchors=ANCHORS, config=CONFIG, **options):
    with torch.no_grad():
        return drafter(config).training_states(features, tokens, anchors, **options)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, attention_bias=True, num_key_value_heads=1), *EXTENDED])
@pytest.mark.parametrize("gamma", [4, 2])
def test_training_equals_incremental_inference(config: DrafterConfig, gamma: int):
    module = drafter(config)
    with torch.no_grad():
        trained = module.training_states(FEATURES, TOKENS, ANCHORS, gamma=gamma)
    cache = module.new_cache(LENGTH)
    for index, anchor in enumerate(ANCHORS.tolist()):
        module.extend(FEATURES[cache.length : anchor], cache)
        block = module.begin(int(TOKENS[anchor]), cache, gamma)
        torch.testing.assert_close(block.hidden, trained[index], atol=1e-5, rtol=1e-5)


@EVERY
def test_rolled_back_context_leaves_no_trace(config):
    module = drafter(config)
    straight, detour = module.new_cache(LENGTH), module.new_cache(LENGTH)
    module.extend(FEATURES[:9], straight)
    module.extend(FEATURES[:6], detour)
    module.extend(tensors(5, CONFIG.features_width, seed=99), detour)
    module.begin(3, detour)
    detour.rollback(6)
    module.extend(FEATURES[6:9], detour)
    torch.testing.assert_close(module.begin(7, detour).hidden, module.begin(7, straight).hidden)


@EVERY
@pytest.mark.parametrize("position", [9, 10, 12, 19])
def test_features_at_or_behind_the_anchor_move_nothing(position, config):
    spoiled = FEATURES.clone()
    spoiled[position:] += 10
    early = position >= ANCHORS
    changed = (states(spoiled, config=config) - states(config=config)).abs().amax(dim=(1, 2)) > 0
    assert changed.tolist() == early.logical_not().tolist()


def test_the_feature_just_before_the_anchor_is_seen():
    spoiled = FEATURES.clone()
    spoiled[8] += 10
    changed = (states(spoiled) - states()).abs().amax(dim=(1, 2)) > 0
    assert changed.tolist() == [False, True, True, True]


@pytest.mark.parametrize("distance", range(1, 9))
def test_a_window_ends_so_many_tokens_before_the_anchor(distance):
    spoiled = FEATURES.clone()
    spoiled[17 - distance] += 10
    moved = (states(spoiled, config=WINDOWED) - states(config=WINDOWED))[3].abs().amax(-1) > 0
    assert moved.tolist() == [distance <= 5] * 4


@EVERY
def test_other_blocks_move_nothing(config):
    alone = states(anchors=torch.tensor([9]), config=config)
    torch.testing.assert_close(alone, states(config=config)[1:2], atol=1e-6, rtol=1e-5)
    tokens = TOKENS.clone()
    tokens[10] = 28
    changed = (states(tokens=tokens, config=config) - states(config=config)).abs().amax(dim=(1, 2)) > 0
    assert changed.tolist() == [False, False, True, False]


@EVERY
def test_other_documents_move_nothing_and_positions_restart(config):
    packed = states(
        torch.cat((tensors(6, CONFIG.features_width, seed=8), FEATURES)),
        torch.cat((torch.zeros(6, dtype=torch.long), TOKENS)),
        torch.cat((torch.tensor([2, 5]), ANCHORS + 6)),
        lengths=(6, LENGTH),
        config=config,
    )
    torch.testing.assert_close(packed[2:], states(config=config), atol=1e-5, rtol=1e-5)


@EVERY
def test_an_anchor_without_context_is_allowed(config):
    assert torch.isfinite(states(anchors=torch.tensor([0]), config=config)).all()


@pytest.mark.parametrize("config", [CONFIG, *EXTENDED])
def test_a_fresh_drafter_is_its_plain_backbone(config):
    """Ingredients start as the identity: with equal weights otherwise, states are equal."""
    rich, plain = DSpark(replace(config, sliding_window=None), *shared()), DSpark(CONFIG, *shared())
    rich.initialize(torch.Generator().manual_seed(1), std=0.3)
    weights = {name.replace("mlp.shared_experts", "mlp"): tensor for name, tensor in rich.state_dict().items()}
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    with torch.no_grad():
        found, expected = (module.training_states(FEATURES, TOKENS, ANCHORS) for module in (rich, plain))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, *EXTENDED])
def test_every_trained_tensor_receives_a_gradient(config):
    module = drafter(config, seed=4)  # with a seed that leaves no expert idle
    hidden = module.training_states(FEATURES, TOKENS, ANCHORS)
    previous = TOKENS[ANCHORS[:, None] + torch.arange(4).clamp(max=2)]
    logits = module.draft_logits(hidden, previous)
    loss = logits[logits.isfinite()].square().sum() + module.confidence_logits(hidden, previous).sum()
    loss.backward()
    assert [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_full_cache_and_a_foreign_cache_are_refused():
    module = drafter()
    cache = module.new_cache(4)
    with pytest.raises(CapacityError, match="cannot take 5 more"):
        module.extend(FEATURES[:5], cache)
    module.extend(FEATURES[:4], cache)
    module.begin(1, cache)  # a block needs no capacity of its own
    with pytest.raises(CapacityError, match="back to 5"):
        cache.rollback(5)
    with pytest.raises(CompatibilityError, match="new_cache"):
        module.extend(FEATURES[:1], object())
