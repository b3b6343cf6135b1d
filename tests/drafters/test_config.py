"""Configurations that cannot work are refused, with the reason."""

from dataclasses import replace

import pytest

from dspark.drafters.config import spread_target_layers
from dspark.drafters.ingredients import Convolution, Experts, HyperConnections
from dspark.errors import ConfigError
from tests.drafters.tiny import CONFIG, DFLASH


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"markov_rank": 0}, "confidence_head_with_markov needs a Markov embedding"),
        ({"markov_rank": -1}, "markov_rank is -1"),
        ({"target_layer_ids": (1, 7)}, "last layer is refused"),
        ({"target_layer_ids": (-2, 3)}, r"must lie in \[-1, 6\]"),
        ({"target_layer_ids": (4, 1)}, "strictly increasing"),
        ({"target_layer_ids": (4, 4)}, "strictly increasing"),
        ({"target_layer_ids": ()}, "is empty"),
        ({"mask_token_id": 31}, "outside the vocabulary"),
        ({"draft_vocab_size": 32}, "draft_vocab_size"),
        ({"draft_vocab_size": 0}, "draft_vocab_size"),
        ({"num_attention_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "even"),
        ({"block_size": 0}, "block_size is 0"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"candidates": 0}, "candidates is 0"),
        ({"candidates": 10, "draft_vocab_size": 9}, r"candidates is 10, outside \[1, 9\]"),
        ({"candidates": 4, "markov_rank": 0, "enable_confidence_head": False}, "chooses among the 4 candidates"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"convolution": Convolution(2, 5)}, "groups of 5 channels do not fill hidden_size 16"),
    ],
)
def test_impossible_configurations_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Convolution(taps=0), "taps is 0"),
        (lambda: Experts(routed=2, active=3), "3 active of 2 routed"),
        (lambda: Experts(width=0), "width is 0"),
        (lambda: HyperConnections(streams=1), "streams is 1; expected at least 2"),
        (lambda: HyperConnections(iterations=0), "iterations is 0"),
    ],
)
def test_impossible_ingredients_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_widths_follow_from_the_sizes():
    assert CONFIG.features_width == 48
    assert CONFIG.draft_vocabulary == 31
    assert replace(CONFIG, draft_vocab_size=9).draft_vocabulary == 9
    assert DFLASH.is_dflash
    assert not CONFIG.is_dflash
    assert not replace(CONFIG, markov_rank=0, confidence_head_with_markov=False).is_dflash
    replace(CONFIG, target_layer_ids=(-1, 6))  # the embedding and the deepest layer allowed


@pytest.mark.parametrize(("layers", "ids"), [(36, (1, 9, 17, 25, 33)), (40, (1, 10, 19, 28, 37)), (8, (1, 2, 3, 4, 5))])
def test_the_spread_rule_gives_the_released_layer_ids(layers, ids):
    assert spread_target_layers(layers) == ids


def test_the_spread_rule_refuses_shallow_targets():
    with pytest.raises(ConfigError, match="do not fit"):
        spread_target_layers(6)
