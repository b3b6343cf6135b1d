"""Frequencies against transformers' own, and rotations against their definition."""

import math

import pytest
import torch

from dspark.nn.rope import RopeSettings, Rotary, apply_rotary


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        (RopeSettings(500.0), {"rope_type": "default"}),
        (RopeSettings(500.0, "linear", 4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            RopeSettings(500.0, "llama3", 8.0, 32, low_freq_factor=1.0, high_freq_factor=4.0),
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
        (RopeSettings(500.0, "yarn", 4.0, 32), {"rope_type": "yarn", "factor": 4.0}),
        (
            RopeSettings(500.0, "yarn", 4.0, 32, beta_fast=16.0, beta_slow=2.0, truncate=False),
            {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        ),
        (
            RopeSettings(500.0, "yarn", 4.0, 32, attention_factor=1.5),
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
        ),
        (
            RopeSettings(500.0, "yarn", 4.0, 32, mscale=0.7, mscale_all_dim=1.3),
            {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3},
        ),
    ],
)
def test_scaled_frequencies_are_those_of_transformers(settings, parameters):
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    if settings.original_positions:
        parameters = parameters | {"original_max_position_embeddings": settings.original_positions}
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, rope_parameters=parameters | {"rope_theta": settings.theta}
    )
    reference, found = LlamaRotaryEmbedding(config), Rotary.scaled(32, settings)
    torch.testing.assert_close(found.inverse_frequencies, reference.inv_freq, atol=0, rtol=1e-6)
    assert found.attention_scale == pytest.approx(reference.attention_scaling)


def test_a_rotation_turns_each_pair_of_halves_by_position_times_frequency():
    rotary = Rotary.plain(4, 100.0)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 4)
    rotated = apply_rotary(x, *rotary.at(torch.tensor([3]))).flatten().tolist()
    for pair, frequency in ((0, 1.0), (1, 0.1)):
        a, b, angle = pair + 1, pair + 3, 3 * frequency
        assert rotated[pair] == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-6)
        assert rotated[pair + 2] == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=1e-6)


def test_scores_depend_on_distance_only():
    rotary = Rotary.plain(16, 10000.0)
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0))

    def score(i, j):
        rotated = (apply_rotary(x, *rotary.at(torch.tensor([p]))) for x, p in ((query, i), (key, j)))
        return torch.mul(*rotated).sum()

    torch.testing.assert_close(score(40, 33), score(1007, 1000), atol=1e-4, rtol=1e-4)


def test_frequencies_stay_float32_for_narrow_states():
    """A bfloat16 position table is off by whole turns after a few hundred positions."""
    rotary = Rotary(Rotary.plain(16, 10000.0).inverse_frequencies)
    cos, _ = rotary.at(torch.tensor([4001]))
    assert cos.dtype is torch.float32
    x = torch.ones(1, 1, 16, dtype=torch.bfloat16)
    wide = apply_rotary(x.float(), *rotary.at(torch.tensor([4001])))
    torch.testing.assert_close(apply_rotary(x, *rotary.at(torch.tensor([4001]))).float(), wide, atol=0.02, rtol=0)
