"""GGUF files written here from tiny models, with the rows of Q and K interleaved as llama.cpp wants them."""

import struct

import numpy as np
import pytest
import torch

from dspark.errors import FormatError
from dspark.nn.rope import RopeSettings, Rotary
from dspark.targets.checkpoint import build_target, read_directory, read_gguf
from dspark.targets.gguf_reader import GGUFFile, hugging_face_name
from dspark.targets.weights_hash import weights_hash

gguf = pytest.importorskip("gguf")

TOKENS = torch.tensor([[5, 9, 2, 44, 31, 8]])
HEADS = {"q_proj": 4, "k_proj": 2}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleave(rows, heads):
    """llama.cpp's own permutation of Q and K rows: [heads, 2, h / 2] -> [heads, h / 2, 2]."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def header(tensors, key, kind, value):
    """A version 3 header with one metadata entry."""
    return b"GGUF" + struct.pack("<IQQQ", 3, tensors, 1, len(key)) + key + struct.pack("<I", kind) + value


def gguf_name(name):
    stem, _, suffix = name.rpartition(".")
    prefix = ""
    if stem.startswith("model.layers."):
        layer, _, stem = stem.removeprefix("model.layers.").partition(".")
        prefix = f"blk.{layer}."
    return f"{prefix}{NAMES[stem]}.{suffix}"


def write(path, arch, model, *, fields=(), tensors=(), skip=()):
    """`model` as a GGUF file; `fields` are extra float metadata, `tensors` extra arrays."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(3)
    for add in fields:
        add(writer)
    for name, parameter in model.state_dict().items():
        if name in skip:
            continue
        values = parameter.numpy()
        kind = name.split(".")[-2]
        writer.add_tensor(
            gguf_name(name), interleave(values, HEADS[kind]) if arch == "llama" and kind in HEADS else values
        )
    for name, values in tensors:
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def states(checkpoint):
    return build_target(checkpoint, torch.float32).states(TOKENS, taps=(-1, 0, 1))


@pytest.mark.parametrize(
    ("arch", "family", "overrides"),
    [
        ("llama", "Llama", {}),
        ("llama", "Llama", {"attention_bias": True}),
        ("qwen2", "Qwen2", {}),
        ("qwen3", "Qwen3", {}),
    ],
)
def test_a_gguf_file_is_the_same_target_as_its_directory(tmp_path, make_model, arch, family, overrides):
    tiny = make_model(family, **overrides)
    found = read_gguf(write(tmp_path / "tiny.gguf", arch, tiny.model), torch.float32)
    expected = states(read_directory(tiny.directory))
    assert torch.equal(states(found).last_hidden, expected.last_hidden)
    assert torch.equal(states(found).features, expected.features)
    info = build_target(found, torch.float32).info
    assert (info.name, info.vocab_size, info.eos_token_ids) == ("tiny", 61, (3,))


def test_a_gguf_file_has_the_identity_of_the_directory_it_converts_to(tmp_path, llama):
    path = write(tmp_path / "tiny.gguf", "llama", llama.model)
    converted = {name: tensor.to(torch.bfloat16) for name, tensor in read_directory(llama.directory).weights.items()}
    assert read_gguf(path, torch.bfloat16).weights_hash == weights_hash(converted)
    path.touch()  # no longer remembered
    assert read_gguf(path, torch.float32).weights_hash == weights_hash(converted)


def test_without_an_output_tensor_the_embedding_is_the_head(tmp_path, make_model):
    tiny = make_model("Llama", tie_word_embeddings=True)
    target = build_target(
        read_gguf(write(tmp_path / "t.gguf", "llama", tiny.model, skip=("lm_head.weight",)), torch.float32),
        torch.float32,
    )
    assert target.lm_head_weight is target.embedding_weight


def test_quantised_tensors_are_dequantised(tmp_path, llama):
    weight = llama.model.model.embed_tokens.weight.detach().numpy()
    packed = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)

    def add(writer):
        writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    path = write(tmp_path / "q.gguf", "llama", llama.model, skip=("model.embed_tokens.weight",), fields=(add,))
    found = read_gguf(path, torch.float32).weights["model.embed_tokens.weight"]
    torch.testing.assert_close(found.numpy(), weight, atol=0.005, rtol=0)


def test_llama3_frequencies_are_recognised_and_others_refused(tmp_path, make_model):
    theta = 500_000.0
    llama = make_model("Llama", rope_parameters={"rope_type": "default", "rope_theta": theta})
    scaled = Rotary.scaled(8, RopeSettings(theta, "llama3", 8.0, original_positions=8192))
    factors = (Rotary.plain(8, theta).inverse_frequencies / scaled.inverse_frequencies).numpy()
    path = write(tmp_path / "a.gguf", "llama", llama.model, tensors=[("rope_freqs.weight", factors)])
    rope = build_target(read_gguf(path, torch.float32), torch.float32).config.rope
    assert (rope.kind, rope.factor, rope.original_positions) == ("llama3", 8.0, 8192)
    path = write(tmp_path / "b.gguf", "llama", llama.model, tensors=[("rope_freqs.weight", factors * np.float32(1.5))])
    with pytest.raises(FormatError, match="no llama3 scaling"):
        read_gguf(path, torch.float32)


def test_yarn_metadata(tmp_path, llama):
    fields = (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
        lambda w: w.add_rope_scaling_factor(4.0),
        lambda w: w.add_rope_scaling_orig_ctx_len(16),
    )
    path = write(tmp_path / "y.gguf", "llama", llama.model, fields=fields)
    rope = build_target(read_gguf(path, torch.float32), torch.float32).config.rope
    assert (rope.kind, rope.factor, rope.original_positions) == ("yarn", 4.0, 16)


@pytest.mark.parametrize("kept", [0, 3, 20, 700, 9000, -100])
def test_a_truncated_file_gives_one_format_error(tmp_path, llama, kept):
    path = write(tmp_path / "t.gguf", "llama", llama.model)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FormatError, match="t.gguf is not a readable GGUF file.*download it again"):
        read_gguf(path, torch.float32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 a zip file", "it starts with b'PK"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "within its header"),
        (header(0, b"k", 77, b""), "unknown metadata type 77"),
        (header(0, b"k", 9, struct.pack("<IQ", 4, 2**50)), "within its header"),
        (header(0, b"k", 9, struct.pack("<IQIQ", 9, 1, 4, 0)), "unknown metadata type 9"),
        (header(0, b"general.alignment", 4, struct.pack("<I", 0)), "general.alignment is 0"),
        (header(0, b"k", 8, struct.pack("<Q", 2) + b"\xff\xfe"), "codec can't decode"),
        (header(1, b"k", 7, b"\1") + struct.pack("<Q1sI", 1, b"t", 99), "tensor t claims 99 dimensions"),
        (header(1, b"k", 7, b"\1") + struct.pack("<Q1sIQIQ", 1, b"t", 1, 4, 12345, 0), "12345 is not a valid"),
    ],
)
def test_malformed_headers_say_what_is_wrong(tmp_path, content, message):
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(FormatError, match=f"bad.gguf is not a readable GGUF file .*{message}"):
        GGUFFile(tmp_path / "bad.gguf")


def test_other_architectures_and_partial_rotation_are_refused(tmp_path, llama):
    with pytest.raises(FormatError, match="architecture 'gptneox' is not supported"):
        GGUFFile(write(tmp_path / "n.gguf", "gptneox", llama.model))
    path = write(tmp_path / "p.gguf", "llama", llama.model, fields=(lambda w: w.add_rope_dimension_count(4),))
    with pytest.raises(FormatError, match="rotates 4 of 8 head dimensions"):
        read_gguf(path, torch.float32)
    with pytest.raises(FormatError, match="does not exist"):
        GGUFFile(tmp_path / "none.gguf")


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "cls.weight"])
def test_unknown_tensors_are_named(name):
    with pytest.raises(FormatError, match=name):
        hugging_face_name(name)
