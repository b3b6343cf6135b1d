"""Targets by name: what is found, and one clear line for what is not."""

import shutil
import sys

import pytest
import torch

from dspark.errors import ConfigError, DependencyError, FormatError
from dspark.targets.native import NativeTarget
from dspark.targets.registry import load_target, load_tokenizer, parse_dtype
from dspark.targets.transformers_adapter import TransformersTarget

transformers = pytest.importorskip("transformers")


def test_a_directory_becomes_a_native_target_named_after_it(llama):
    target = load_target(llama.directory, "fp32", "plain")
    assert isinstance(target, NativeTarget)
    assert target.info.name == llama.directory.name
    assert target.embedding_weight.dtype is torch.float32


def test_bf16_is_the_default(llama):
    target = load_target(str(llama.directory))
    assert isinstance(target, NativeTarget)
    assert target.embedding_weight.dtype is torch.bfloat16


@pytest.fixture
def gpt2(tmp_path):
    config = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def test_other_models_go_through_transformers(gpt2):
    assert isinstance(load_target(gpt2), TransformersTarget)


def test_without_transformers_the_reason_is_given(gpt2, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"model_type 'gpt2' is not supported natively.*dspark\[hf\]"):
        load_target(gpt2)


@pytest.mark.parametrize("name", ["nonsense", "no/such/place", "missing.gguf", "some/missing.gguf"])
def test_names_that_lead_nowhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for load in (load_target, load_tokenizer):
        with pytest.raises(FormatError, match=f"target '{name}' not found; expected 'smollm2-135m', a model directory"):
            load(name)


def test_a_file_that_is_no_gguf(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(FormatError, match=r"is a file, but not \.gguf"):
        load_target(tmp_path / "model.bin")


def test_hub_names_need_the_hub_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DependencyError, match=r"'org/name' is no local path.*dspark\[hf\]"):
        load_target("org/name")


def test_an_unreachable_hub_gives_one_line(monkeypatch):
    import huggingface_hub

    def fail(*_, **__):
        raise OSError("offline\nmany\nlines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        FormatError, match=r"'org/name' is no local path and could not be fetched from the hub: offline$"
    ):
        load_target("org/name")


def test_a_hub_name_keeps_its_organisation(llama, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(llama.directory))
    assert load_target("org/name").info.name == "org/name"


def test_the_tokenizer_beside_the_weights(llama, tmp_path):
    from tokenizers import Tokenizer, models

    directory = shutil.copytree(llama.directory, tmp_path / "model")
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(directory / "tokenizer.json"))
    assert load_tokenizer(directory).encode("b") == [1]


def test_dtypes():
    assert (parse_dtype("bf16"), parse_dtype(torch.float32)) == (torch.bfloat16, torch.float32)
    for wrong in ("fp16", torch.float16):
        with pytest.raises(ConfigError, match="choose bf16, fp32 or"):
            parse_dtype(wrong)
