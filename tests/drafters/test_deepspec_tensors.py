"""The table of tensor shapes is exactly what the modules have."""

from dataclasses import replace

import pytest
import torch

from dspark.drafters.eagle3 import Eagle3, Eagle3Config
from dspark.drafters.formats.deepspec_tensors import draft_map_shapes, own_shapes, shared_shapes, stored_name
from tests.drafters.tiny import CONFIG, DFLASH, DFLASH2, INGREDIENTS, KINDS, PRODUCTION, drafter, shared, with_head


def shapes(module):
    return {stored_name(name, module.config): tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize(
    "config",
    [
        *map(with_head, KINDS),
        DFLASH,
        replace(CONFIG, confidence_head_with_markov=False),
        replace(CONFIG, enable_confidence_head=False),
        replace(CONFIG, markov_rank=0, confidence_head_with_markov=False),
        replace(CONFIG, attention_bias=True, num_hidden_layers=1, head_dim=6),
        *INGREDIENTS,
        DFLASH2,
        PRODUCTION,
    ],
)
def test_dspark_and_dflash(config):
    assert own_shapes(config) == shapes(drafter(config))


def test_dflash2_has_its_released_names():
    shapes = own_shapes(replace(DFLASH2, draft_vocab_size=9))
    assert shapes["layers.1.attention_conv.base_kernel"] == (2, 2, 16)
    assert shapes["layers.1.mlp_conv.kernel_projection.weight"] == (2 * 2 * 16 // 4, 16)
    selector = {name: shape for name, shape in shapes.items() if name.startswith("candidate_selector.")}
    assert selector == {
        "candidate_selector.predecessor_codebook": (31, 6),
        "candidate_selector.successor_codebook": (9, 6),
        "candidate_selector.hidden_projection.weight": (6, 16),
    }
    assert not any(name.startswith("markov_head") for name in shapes)


def test_a_pruned_vocabulary():
    config = replace(CONFIG, draft_vocab_size=3)
    assert own_shapes(config) == shapes(drafter(config, torch.tensor([1, 2, 5])))
    assert draft_map_shapes(config) == {"d2t": (3,), "t2d": (31,)}
    assert shared_shapes(config) == {"embed_tokens.weight": (31, 16), "lm_head.weight": (3, 16)}
    assert draft_map_shapes(CONFIG) == {}


@pytest.mark.parametrize("bias", [False, True])
def test_eagle3(bias):
    config = Eagle3Config(16, 24, 1, 4, 2, 8, 31, 8, (1, 4), attention_bias=bias)
    assert own_shapes(config) == shapes(Eagle3(config, *shared()))
