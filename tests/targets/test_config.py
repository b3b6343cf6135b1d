"""config.json files, new and old, and what the native decoder refuses by name."""

import pytest

from dspark.errors import ConfigError
from dspark.nn.rope import RopeSettings
from dspark.targets.config import Biases, DecoderConfig, check_taps
from dspark.types import AFTER_NORM

BASE = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def parse(**changes):
    return DecoderConfig.parse({k: v for k, v in (BASE | changes).items() if v is not None})


def test_defaults_of_old_files():
    config = parse()
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (4, 8, 1e-6)
    assert config.rope == RopeSettings(theta=10000.0)
    assert (config.windows, config.biases, config.tie_word_embeddings) == ((None,) * 4, Biases(), False)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ],
)
def test_rope_of_every_generation(fields):
    assert parse(**fields).rope == RopeSettings(theta=5e5, kind="linear", factor=2.0)


def test_yarn_takes_its_factor_from_the_lengths_if_it_names_none():
    rope = parse(rope_scaling={"type": "yarn", "original_max_position_embeddings": 32, "factor": None}).rope
    assert (rope.factor, rope.original_positions) == (4.0, 32)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 8}, (None,) * 4),
        ({"model_type": "mistral", "sliding_window": 8}, (8,) * 4),
        ({"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 0}, (None,) * 4),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True}, (None,) * 4),
        (
            {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 8),
        ),
    ],
)
def test_windows(fields, windows):
    assert parse(**fields).windows == windows


@pytest.mark.parametrize(
    ("model_type", "biases"),
    [
        ("llama", Biases(qkv=True, output=True)),
        ("mistral", Biases()),
        ("qwen2", Biases(qkv=True)),
        ("qwen3", Biases(qkv=True, output=True)),
    ],
)
def test_attention_bias_means_something_else_in_every_family(model_type, biases):
    assert parse(model_type=model_type, attention_bias=True).biases == biases


def test_qwen3_heads_are_wide_by_default():
    assert parse(model_type="qwen3").head_dim == 128


@pytest.mark.parametrize(("found", "expected"), [(None, ()), (2, (2,)), ([2, 7], (2, 7))])
def test_end_tokens(found, expected):
    assert parse(eos_token_id=found).eos_token_ids == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported natively"),
        ({"model_type": None}, "model_type None"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["full_attention", "linear_attention"]}, r"layer_types \['linear_attention'\]"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "factor None"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"hidden_size": None}, "hidden_size = None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_key_value_heads": "two"}, "num_key_value_heads = 'two'; expected a positive integer"),
        ({"num_key_value_heads": 2.0}, "num_key_value_heads = 2.0"),
        ({"head_dim": [8]}, r"head_dim = \[8\]"),
        ({"eos_token_id": "end"}, "eos_token_id = 'end'; expected a token id"),
        ({"eos_token_id": [1, None]}, "eos_token_id"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small'; expected a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no'; expected true or false"),
        ({"quantization_config": "awq"}, "quant_method 'awq'"),
        ({"rope_parameters": "default"}, "rope_parameters = 'default'; expected an object"),
        ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta = '1e4'"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = '2'"),
        ({"layer_types": "full_attention"}, "layer_types = 'full_attention'; expected a list"),
        ({"model_type": "mistral", "sliding_window": "8"}, "sliding_window = '8'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"head_dim": 7}, "head_dim is 7"),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention"]},
            "1 layer_types for 4 layers",
        ),
    ],
)
def test_refusals_name_what_they_refuse(fields, message):
    with pytest.raises(ConfigError, match=message):
        parse(**fields)


@pytest.mark.parametrize("layer", [-3, 3, 4])
def test_taps_outside_the_model(layer):
    check_taps((-1, 0, 2, AFTER_NORM), 4)
    with pytest.raises(ConfigError, match=f"layer id {layer}"):
        check_taps((0, layer), 4)
