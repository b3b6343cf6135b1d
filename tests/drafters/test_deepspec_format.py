"""DeepSpec directories: written and read back exactly, and everything else refused by name."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.drafters.extras import DrafterExtras, Layout
from dspark.drafters.formats.deepspec import build_dspark, open_checkpoint, shared_tensors
from dspark.drafters.registry import save_drafter
from dspark.errors import FormatError
from tests.drafters.tiny import CONFIG, DFLASH, DFLASH2, EXTENDED, KINDS, PRODUCTION, drafter, shared, with_head

KEPT = torch.tensor([29, 3, 4, 17, 11])
EXTRAS = DrafterExtras(
    name="tiny-dspark",
    layout=Layout.ANCHOR_FIRST,
    target_name="tiny",
    target_hash="aa",
    template_hash="bb",
    thinking=False,
    training={"steps": 12, "tau": 1.5},
)


def saved(directory, config=CONFIG, kept=None, extras=EXTRAS, **options):
    module = drafter(config, kept)
    save_drafter(module, directory, extras, torch.float32, **options)
    return module


def edit_config(directory, **changes):
    path = directory / "config.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))


def edit_tensors(directory, **changes):
    path = directory / "model.safetensors"
    data = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in data.items() if value is not None}, path)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        *((with_head(kind), None) for kind in KINDS),
        (DFLASH, None),
        (replace(CONFIG, confidence_head_with_markov=False), None),
        (replace(CONFIG, draft_vocab_size=5), KEPT),
        (replace(CONFIG, attention_bias=True, rope_theta=5e5, max_position_embeddings=99), None),
        *((config, None) for config in EXTENDED),
        (replace(DFLASH2, draft_vocab_size=5), KEPT),
    ],
)
@pytest.mark.parametrize("include_shared", [False, True])
def test_round_trip(tmp_path, config, kept, include_shared):
    module = saved(tmp_path, config, kept, include_shared=include_shared)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == config
    assert checkpoint.extras == EXTRAS
    again = build_dspark(checkpoint, *(shared_tensors(checkpoint) if include_shared else shared()), torch.float32)
    assert again.state_dict().keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert torch.equal(again.head, module.head)
    assert again.info.name == "tiny-dspark"
    assert kept is None or torch.equal(again.info.draft_token_ids, kept)


def test_bfloat16_on_disk_unless_asked_otherwise(tmp_path):
    save_drafter(drafter(), tmp_path, EXTRAS)
    dtypes = {t.dtype for t in load_file(tmp_path / "model.safetensors").values()}
    assert dtypes == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_our_config_has_the_keys_that_deepspec_demands_and_ours_stay_in_one(tmp_path, shared_dir):
    saved(tmp_path)
    golden = shared_dir / "reference/golden/deepspec/dspark_vanilla/config.json"
    ours, theirs = (json.loads(path.read_text()) for path in (tmp_path / "config.json", golden))
    left_out = {"bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "initializer_range"}
    left_out |= {"max_window_layers", "sliding_window", "use_cache"}
    assert set(theirs) - set(ours) == left_out
    assert set(ours) - set(theirs) == {"dspark", "rope_theta"}


def test_the_draft_vocabulary_is_stored_as_speculators_does(tmp_path):
    saved(tmp_path, replace(CONFIG, draft_vocab_size=5), KEPT)
    tensors = load_file(tmp_path / "model.safetensors")
    assert (torch.arange(5) + tensors["d2t"]).tolist() == KEPT.tolist()
    assert tensors["t2d"].nonzero().squeeze(-1).tolist() == sorted(KEPT.tolist())
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    assert tensors["markov_head.markov_w1.weight"].shape == (31, 6)
    assert tensors["markov_head.markov_w2.weight"].shape == (5, 6)


def test_shards_are_read_like_one_file(tmp_path):
    module = saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {name: file for file, part in shards.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    again = build_dspark(open_checkpoint(tmp_path), *shared(), torch.float32)
    assert torch.equal(again.fc.weight, module.fc.weight)

    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index | {"ghost": "a.safetensors"}})
    )
    with pytest.raises(FormatError, match=r"disagree about \['ghost'\]"):
        open_checkpoint(tmp_path)
    index[names[0]] = "../a.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(FormatError, match="not a file in"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": torch.zeros(1)}, "unknown surprise"),
        ({"norm__weight": None}, r"missing norm\.weight"),
        ({"fc__weight": torch.zeros(16, 32)}, r"fc\.weight is \[16, 32\], config.json makes it \[16, 48\]"),
        ({"embed_tokens__weight": torch.zeros(30, 16)}, r"embed_tokens\.weight is \[30, 16\]"),
        ({"d2t": torch.zeros(5, dtype=torch.long)}, "unknown d2t"),
    ],
)
def test_every_tensor_is_accounted_for(tmp_path, changes, message):
    saved(tmp_path)
    edit_tensors(tmp_path, **changes)
    with pytest.raises(FormatError, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"markov_rank": 0}, "confidence_head_with_markov needs"),
        ({"enable_confidence_head": False}, r"unknown confidence_head\.proj"),
        ({"markov_head_type": "gated"}, r"missing markov_head\.gate_proj"),
        ({"markov_head_type": "lstm"}, "markov_head_type is 'lstm'"),
        ({"num_hidden_layers": 3}, r"missing layers\.2.* and 6 more"),
        ({"target_layer_ids": [1, 4]}, r"fc\.weight is \[16, 48\]"),
        ({"target_layer_ids": [1, 4, 7]}, "last layer is refused"),
        ({"target_layer_ids": [1, "4"]}, "expected a list of whole numbers"),
        ({"hidden_size": "16"}, "`hidden_size` is '16', expected a whole number"),
        ({"hidden_size": ...}, "lacks `hidden_size`"),
        ({"block_size": True}, "`block_size` is True"),
        ({"rms_norm_eps": None}, "lacks `rms_norm_eps`"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"layer_types": 3}, "layer_types has 3"),
        ({"architectures": {"0": "Qwen3DSparkModel"}}, "architecture"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rotary scaling 'yarn'"),
        ({"rope_parameters": 3}, "expected an object"),
        ({"dspark": {"layout": "fill_in"}}, "only anchor_first can be run"),
        ({"dspark": {"layout": "sideways"}}, "layout is 'sideways'"),
    ],
)
def test_malformed_configurations_are_refused(tmp_path, changes, message):
    saved(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(FormatError, match=message):
        open_checkpoint(tmp_path)


def ingredients(**changes):
    full = {"experts": {"routed": 4, "active": 2, "width": 12}, "hyper_connections": {"streams": 3, "iterations": 20}}
    return {"ingredients": {key: value for key, value in (full | changes).items() if value is not ...}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (ingredients(dropout=1), r"ingredients has \['dropout'\], expected only"),
        (ingredients(experts={"routed": 4, "active": 2, "width": 12, "top": 1}), r"ingredients.experts has \['top'\]"),
        (ingredients(experts={"routed": 4, "active": 2}), "lacks `width`"),
        (ingredients(experts={"routed": 4, "active": 5, "width": 12}), "5 active of 4 routed"),
        (ingredients(experts=...), r"missing layers\.0\.mlp\.down_proj"),
        (ingredients(convolution={"taps": 2, "group": 4}), r"missing layers\.0\.attention_conv\.base_kernel"),
        (ingredients(convolution={"taps": 2, "group": 5}), "groups of 5 channels do not fill"),
        (ingredients(hyper_connections={"streams": 1, "iterations": 20}), "streams is 1; expected at least 2"),
        (ingredients(candidates=0), r"candidates is 0, outside \[1, 31\]"),
        ({"ingredients": 3}, "expected an object"),
        ({"use_sliding_window": False}, "layer_types has"),
        ({"layer_types": ["full_attention"] * 2}, "makes every layer sliding_attention"),
        ({"sliding_window": None}, "lacks `sliding_window`"),
        ({"architectures": ["Qwen3DSparkModel"]}, "`use_sliding_window` is True"),
    ],
)
def test_ingredients_are_read_strictly(tmp_path, changes, message):
    saved(tmp_path, PRODUCTION)
    edit_config(tmp_path, **changes)
    with pytest.raises(FormatError, match=message):
        open_checkpoint(tmp_path)


def test_deepspecs_reader_would_refuse_what_it_does_not_have(tmp_path):
    for config in EXTENDED:
        saved(tmp_path, config)
        assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["ExtendedDSparkModel"]


def test_ingredients_are_not_overlooked_under_deepspecs_name(tmp_path):
    saved(tmp_path, DFLASH2)
    edit_config(tmp_path, architectures=["Qwen3DSparkModel"])
    with pytest.raises(FormatError, match="`ingredients`"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"]}, "vLLM speculators"),
        ({"architectures": ["DSparkDraftModel"], "dflash_config": {"projector_type": "dspark"}}, "SpecForge"),
        ({"architectures": ["DFlashDraftModel"]}, "z-lab DFlash checkpoint .fill-in layout"),
        ({"architectures": ["DFlash2DraftModel"]}, "z-lab DFlash 2 checkpoint .fill-in layout"),
        ({"architectures": ["Gemma4Eagle3Model"]}, "Gemma 4"),
        ({"architectures": ["LlamaForCausalLM"]}, "architecture 'LlamaForCausalLM'"),
        ({"architectures": []}, "architecture 'nothing'"),
        ({"architectures": None, "dspark_target_layer_ids": [40]}, "DeepSeek-V4"),
    ],
)
def test_foreign_packagings_are_refused_by_name(tmp_path, changes, name):
    saved(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(FormatError, match=f"{name}.*expected DeepSpec's Qwen3DSparkModel"):
        open_checkpoint(tmp_path)


def test_missing_damaged_and_pickled_files(tmp_path):
    with pytest.raises(FormatError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    saved(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(FormatError, match="not a readable safetensors file"):
        open_checkpoint(tmp_path)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FormatError, match=r"pytorch_model\.bin, a pickle, which is never opened"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(FormatError, match="has neither"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match="not readable JSON"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(FormatError, match="expected a JSON object"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("ids", [[3, 3, 4, 5, 6], [3, 4, 5, 6, 40], [-1, 4, 5, 6, 7], [3, 4, 5, 6, 7]])
def test_an_unusable_draft_vocabulary_is_refused(tmp_path, ids):
    saved(tmp_path, replace(CONFIG, draft_vocab_size=5), KEPT)
    edit_tensors(tmp_path, d2t=torch.tensor(ids) - torch.arange(5))
    with pytest.raises(FormatError, match="d2t and t2d disagree"):
        build_dspark(open_checkpoint(tmp_path), *shared(), torch.float32)


def test_a_missing_layout_flag_is_decided_by_the_producer_and_said(tmp_path):
    saved(tmp_path)
    edit_config(tmp_path, dspark=...)
    layout, reason = open_checkpoint(tmp_path).layout
    assert layout is Layout.ANCHOR_FIRST
    assert "DeepSpec" in reason


def test_a_file_without_shared_tensors_needs_a_target(tmp_path):
    saved(tmp_path)
    with pytest.raises(FormatError, match="name the target"):
        shared_tensors(open_checkpoint(tmp_path))
