"""What an inspection says about a drafter directory."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from dspark.drafters.description import describe
from dspark.drafters.eagle3 import Eagle3Config
from dspark.drafters.extras import DrafterExtras
from dspark.drafters.registry import extras_for, save_drafter
from dspark.errors import ConfigError
from tests.drafters.tiny import CONFIG, DFLASH, INFO, drafter


def test_our_own_drafter(tmp_path):
    module = drafter(replace(CONFIG, draft_vocab_size=3), torch.tensor([1, 2, 5]))
    save_drafter(module, tmp_path, replace(extras_for(INFO, "tiny-dspark", thinking=False), training={"steps": 3}))
    told = describe(tmp_path)
    assert told.kind == "DSpark (vanilla head of rank 6, with confidence)"
    assert (told.producer, told.layout, told.gamma) == ("dspark", "anchor_first", 4)
    assert "config.json says so" in told.layout_reason
    assert told.parameters == sum(p.numel() for p in module.parameters())
    assert told.shared_parameters == 0
    assert told.target == {"name": "tiny", "weights_hash": INFO.weights_hash}
    assert (told.thinking, told.training) == (False, {"steps": 3})
    assert any("3 of 31" in note for note in told.notes)
    json.dumps(asdict(told))


def test_an_unbound_dflash_with_odd_rotary_key(tmp_path):
    save_drafter(drafter(DFLASH), tmp_path, DrafterExtras(), include_shared=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"partial_rotary_factor": 0.5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = describe(tmp_path)
    assert told.kind == "DFlash"
    assert told.shared_parameters == 2 * 31 * 16
    assert [note.split()[0] for note in told.notes] == ["partial_rotary_factor", "the"]


def test_eagle3(shared_dir):
    told = describe(shared_dir / "reference/golden/deepspec/eagle3")
    assert (told.kind, told.layout, told.gamma, told.producer) == ("Eagle3", "chain", 5, "DeepSpec")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layer_ids": (-1, 2)}, "start at 0"),
        ({"num_hidden_layers": 2}, "one layer"),
        ({"ttt_length": 0}, "at least 1"),
    ],
)
def test_impossible_eagle3_configurations_are_refused(changes, message):
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "num_target_layers"), 8)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_hidden_layers": 1}
    with pytest.raises(ConfigError, match=message):
        Eagle3Config(**(sizes | heads | {"target_layer_ids": (1, 2)} | changes))
