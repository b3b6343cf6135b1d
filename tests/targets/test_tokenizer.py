"""Encoding, offsets, and decoding token by token without ever writing half a character."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from dspark.errors import FormatError
from dspark.targets.tokenizer import SpecialTokens, Tokenizer


def byte_level() -> RawTokenizer:
    """One token per byte, two merges, and a special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "th", "the"])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return raw


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(byte_level(), SpecialTokens(eos="<|end|>"))


@given(st.text(max_size=40))
def test_a_stream_gives_the_text_and_never_half_a_character(tokenizer, text):
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) + stream.finish() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 258), max_size=30))
def test_a_stream_of_any_bytes_ends_as_the_whole_decodes(tokenizer, ids):
    stream = tokenizer.stream(skip_special_tokens=False)
    text = "".join([stream.push(token) for token in ids]) + stream.finish()
    assert text == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_character_of_four_bytes_appears_with_its_last_one(tokenizer):
    stream = tokenizer.stream()
    ids = tokenizer.encode("a😀b")
    assert [stream.push(token) for token in ids] == ["a", "", "", "", "😀", "b"]


def test_several_tokens_at_once_are_one_piece(tokenizer):
    assert tokenizer.stream().push(*tokenizer.encode("the é")) == "the é"


def test_a_decoder_that_drops_the_first_space_keeps_the_others():
    raw = RawTokenizer(models.BPE(vocab={"▁a": 0, "▁b": 1}, merges=[]))
    raw.decoder = decoders.Metaspace()
    stream = Tokenizer(raw, SpecialTokens()).stream()
    assert [stream.push(token) for token in (0, 1, 1)] == ["a", " b", " b"]


def test_special_tokens_are_skipped_only_on_request(tokenizer):
    ids = [*tokenizer.encode("the"), tokenizer.token_id("<|end|>")]
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "the<|end|>"
    assert tokenizer.encode("the<|end|>") == ids
    assert tokenizer.token_id("<|none|>") is None


def test_offsets_cover_the_text_in_characters(tokenizer):
    encoding = tokenizer.encode_with_offsets("the é!")
    assert list(encoding.ids) == tokenizer.encode("the é!")
    assert encoding.offsets == ((0, 3), (3, 4), (4, 5), (4, 5), (5, 6))


@pytest.fixture
def directory(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_directory_without_settings(directory):
    tokenizer = Tokenizer.from_directory(directory)
    assert (tokenizer.special, tokenizer.chat_template, tokenizer.vocab_size) == (SpecialTokens(), None, 259)


@pytest.mark.parametrize("eos", ["<|end|>", {"content": "<|end|>", "special": True}])
def test_special_tokens_of_the_settings(directory, eos):
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos, "bos_token": None}))
    assert Tokenizer.from_directory(directory).special == SpecialTokens(eos="<|end|>")


@pytest.mark.parametrize("ids", [258, [258, 3]])
def test_special_tokens_by_id(directory, ids):
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    assert Tokenizer.from_directory(directory).special.eos == "<|end|>"


@pytest.mark.parametrize(
    ("settings", "file", "expected"),
    [
        ("old", None, "old"),
        ("old", "new", "new"),
        ([{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}], None, "yes"),
    ],
)
def test_chat_templates(directory, settings, file, expected):
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": settings}))
    if file:
        (directory / "chat_template.jinja").write_text(file)
    assert Tokenizer.from_directory(directory).chat_template == expected


def test_truncation_settings_of_the_file_are_ignored(directory):
    raw = byte_level()
    raw.enable_truncation(2)
    raw.save(str(directory / "tokenizer.json"))
    assert len(Tokenizer.from_directory(directory).encode("abcdef")) == 6


def test_unreadable_files(directory, tmp_path_factory):
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="not a readable tokenizer"):
        Tokenizer.from_directory(directory)
    with pytest.raises(FormatError, match="no tokenizer.json"):
        Tokenizer.from_directory(tmp_path_factory.mktemp("empty"))
