"""Vectors recorded from the official code, recomputed: every tensor of every case, gradients included."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.drafters.extras import DrafterExtras
from dspark.drafters.parity import ParityReport, parity
from dspark.drafters.registry import save_drafter
from dspark.errors import FormatError
from tests.drafters.tiny import drafter, target

GOLDEN = "reference/golden/deepspec"
CASES = ("dflash", "dspark_vanilla", "dspark_gated", "dspark_rnn", "dspark_conf_hidden_only", "eagle3")
NOT_COMPARED = {"features", "tokens", "input_ids", "target_last_hidden", "loss_mask", "anchors"}


def check(directory: Path, name: str) -> ParityReport:
    report = parity(directory, directory / name)
    recorded = {k for k in load_file(directory / name) if not k.endswith("anchor_position")} - NOT_COMPARED
    assert set(report.tensors) == recorded
    assert report.max_abs_error <= 2e-5, report.tensors
    return report


@pytest.mark.parametrize("case", CASES)
def test_inference_over_three_rounds(shared_dir, case):
    report = check(shared_dir / GOLDEN / case, "expected.safetensors")
    assert {name.split(".")[0] for name in report.tensors} == {"round0", "round1", "round2"}
    assert {e for name, e in report.tensors.items() if name.endswith("greedy_tokens")} == {0.0}


@pytest.mark.parametrize("case", CASES[:-1])
def test_one_training_step(shared_dir, case):
    report = check(shared_dir / GOLDEN / case, "training.safetensors")
    assert report.tensors["loss"] <= 1e-5
    assert sum(name.startswith("grad.") for name in report.tensors) >= 25


def test_a_changed_weight_is_noticed(shared_dir, tmp_path):
    """Guards against a comparison that passes whatever it is given."""
    case = shared_dir / GOLDEN / "dspark_rnn"
    weights = load_file(case / "model.safetensors")
    weights["layers.1.self_attn.k_norm.weight"] *= 1.01
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((case / "config.json").read_text())
    assert parity(tmp_path, case / "expected.safetensors").max_abs_error > 1e-3


def test_records_of_another_kind_are_refused(shared_dir, tmp_path):
    case, other = shared_dir / GOLDEN / "dflash", tmp_path / "vectors.safetensors"
    with pytest.raises(FormatError, match=r"records .*confidence_logits.* does not produce"):
        parity(case, shared_dir / GOLDEN / "dspark_vanilla" / "expected.safetensors")
    save_file({"features": torch.zeros(3, 144), "tokens": torch.zeros(4)}, other)
    with pytest.raises(FormatError, match=r"lacks the input 'round0\.anchor_position'"):
        parity(case, other)
    other.write_bytes(b"no")
    with pytest.raises(FormatError, match="not a readable safetensors file"):
        parity(case, other)


def test_a_target_stands_in_for_tensors_that_are_not_stored(tmp_path):
    module, owner = drafter(), target()
    save_drafter(module, tmp_path / "d", DrafterExtras(), torch.float32)
    cache = module.new_cache(8)
    features = torch.ones(5, module.config.features_width)
    module.extend(features[:4], cache)
    hidden = module.begin(3, cache).hidden
    tokens = torch.tensor([0, 0, 0, 0, 3])
    vectors = {
        "features": features,
        "tokens": tokens,
        "round0.anchor_position": torch.tensor([4]),
        "round0.hidden": hidden,
    }
    save_file(vectors, tmp_path / "v.safetensors")
    assert parity(tmp_path / "d", tmp_path / "v.safetensors", owner).max_abs_error == 0.0
    with pytest.raises(FormatError, match="name the target"):
        parity(tmp_path / "d", tmp_path / "v.safetensors")
