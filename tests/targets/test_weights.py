"""Checkpoints whose tensors are missing, unknown, misshapen, misplaced or split."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.errors import FormatError
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.weights_hash import remembered_hash, weights_hash

TOKENS = torch.tensor([[5, 9, 2, 44]])


@pytest.fixture
def directory(llama, tmp_path):
    return shutil.copytree(llama.directory, tmp_path / "model")


def change(directory, changes):
    """Rewrite the weights file; None removes a tensor."""
    weights = load_file(directory / "model.safetensors") | changes
    (directory / "model.safetensors").unlink()
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, directory / "model.safetensors")


def load(directory):
    return build_target(read_directory(directory), torch.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.norm.weight": None}, "lacks tensors .*: model.norm.weight"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}, "does not imply: model.layers.0.self_attn.q_norm"),
        ({"model.layers.3.mlp.up_proj.weight": torch.ones(48, 32)}, "does not imply: model.layers.3"),
        ({"model.layers.1.mlp.up_proj.weight": torch.ones(32, 48)}, r"up_proj.weight has shape \(32, 48\).*\(48, 32\)"),
        ({"model.norm.weight": torch.ones(32, dtype=torch.int8)}, "model.norm.weight is torch.int8"),
    ],
)
def test_every_tensor_is_accounted_for(directory, changes, message):
    change(directory, changes)
    with pytest.raises(FormatError, match=message):
        load(directory)


def test_rotary_buffers_of_old_checkpoints_are_ignored(directory):
    change(directory, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    load(directory)


def test_a_tied_checkpoint_may_repeat_its_embedding_but_nothing_else(make_model, tmp_path):
    directory = shutil.copytree(make_model("Llama", tie_word_embeddings=True).directory, tmp_path / "tied")
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    change(directory, {"lm_head.weight": embedding.clone()})
    load(directory)
    change(directory, {"lm_head.weight": embedding + 1})
    with pytest.raises(FormatError, match="ties lm_head.weight to the embedding"):
        load(directory)


@pytest.fixture
def sharded(llama, tmp_path):
    llama.model.save_pretrained(tmp_path / "sharded", max_shard_size="12KB")
    return tmp_path / "sharded"


def test_shards_give_the_same_target_as_one_file(llama, sharded):
    assert len(list(sharded.glob("*.safetensors"))) > 2
    whole, split = load(llama.directory), load(sharded)
    assert torch.equal(whole.states(TOKENS).last_hidden, split.states(TOKENS).last_hidden)
    assert whole.info.weights_hash == split.info.weights_hash


def test_a_missing_shard_is_named(sharded):
    removed = sorted(sharded.glob("*.safetensors"))[0]
    removed.unlink()
    with pytest.raises(FormatError, match=f"lacks shards .*{removed.name}"):
        load(sharded)


def test_an_index_must_agree_with_its_shards_and_stay_in_its_folder(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    shard = content["weight_map"].pop("model.norm.weight")
    index.write_text(json.dumps(content))
    with pytest.raises(FormatError, match="disagree: model.norm.weight"):
        load(sharded)
    content["weight_map"]["model.norm.weight"] = f"../{shard}"
    index.write_text(json.dumps(content))
    with pytest.raises(FormatError, match="outside its folder"):
        load(sharded)
    index.write_text("{}")
    with pytest.raises(FormatError, match="not a safetensors index"):
        load(sharded)


def test_unreadable_files_give_one_format_error(directory, tmp_path):
    (directory / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(FormatError, match="not a readable safetensors file"):
        load(directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(FormatError, match="only safetensors are read"):
        load(directory)
    (directory / "config.json").write_text("{nonsense")
    with pytest.raises(FormatError, match="not readable JSON"):
        load(directory)
    with pytest.raises(FormatError, match="no config.json"):
        load(tmp_path)


def test_end_tokens_of_the_generation_configuration_win(directory):
    (directory / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert load(directory).info.eos_token_ids == (3, 4)


def test_the_hash_sees_names_types_shapes_and_values():
    base = {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    others = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].reshape(2, 3), "b": base["b"]},
        {"a": base["a"], "b": base["b"].half()},
        {"a": base["a"] + 1e-6, "b": base["b"]},
    ]
    assert weights_hash(dict(reversed(base.items()))) == weights_hash(base)
    assert len({weights_hash(weights) for weights in (base, *others)}) == 5


def test_a_remembered_hash_is_forgotten_when_a_file_changes(tmp_path):
    file = tmp_path / "weights"
    file.write_text("one")
    answers = iter(("first", "second"))
    assert remembered_hash([file], lambda: next(answers), tmp_path / "cache") == "first"
    assert remembered_hash([file], lambda: next(answers), tmp_path / "cache") == "first"
    file.write_text("three")
    assert remembered_hash([file], lambda: next(answers), tmp_path / "cache") == "second"
