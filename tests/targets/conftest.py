"""Tiny random models of every native family, made by transformers and saved as Hugging Face directories."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the extra `hf`: transformers is the reference here")

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "eos_token_id": 3,
}

LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 12}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 16}}),
    "llama-yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {}),
    "qwen2-late-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {}),
    "qwen3-biases": ("Qwen3", {"attention_bias": True}),
    "qwen3-mixed-window": (
        "Qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


class TinyModel(NamedTuple):
    """A transformers model and the directory it is saved in."""

    model: Any
    directory: Path


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Hashes of throw-away models do not belong in the user's cache."""
    before = os.environ.get("DSPARK_CACHE")
    os.environ["DSPARK_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("DSPARK_CACHE")
    if before is not None:
        os.environ["DSPARK_CACHE"] = before


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyModel]:
    """Build `family` (Llama, Mistral, ...) with `SIZES` and overrides; every parameter, biases too, is random."""

    def make(family: str, **overrides: Any) -> TinyModel:
        torch.manual_seed(7)
        config = getattr(transformers, f"{family}Config")(**SIZES | overrides)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.2)
        directory = tmp_path_factory.mktemp(family)
        model.save_pretrained(directory)
        return TinyModel(model, directory)

    return make


@pytest.fixture(scope="session", params=VARIANTS)
def variant(request: pytest.FixtureRequest, make_model: Callable[..., TinyModel]) -> TinyModel:
    """Each native family and feature in turn."""
    family, overrides = VARIANTS[request.param]
    return make_model(family, **overrides)


@pytest.fixture(scope="session")
def llama(make_model: Callable[..., TinyModel]) -> TinyModel:
    return make_model("Llama")
