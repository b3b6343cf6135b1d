"""What a GGUF file's metadata make of its tokenizer."""

from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from dspark.errors import FormatError
from dspark.targets.gguf_tokenizer import read_tokenizer

TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "ab", "xyz"]
BOS, WHOLE = len(TOKENS) - 3, len(TOKENS) - 1


class Metadata:
    """The part of a GGUF file that the tokenizer reads."""

    path = Path("tiny.gguf")

    def __init__(self, pre: str, **fields: object) -> None:
        kinds = [1] * len(TOKENS)
        kinds[BOS] = 3
        known = {"model": "gpt2", "pre": pre, "tokens": TOKENS, "merges": ["a b"], "token_type": kinds}
        self.fields = {
            f"tokenizer.ggml.{key}": value for key, value in (known | {"bos_token_id": BOS} | fields).items()
        }

    def field(self, key: str, default: object = None) -> object:
        return self.fields.get(key, default)

    required = field


@pytest.mark.parametrize(
    ("pre", "fields", "opens"),
    [
        ("smollm", {}, False),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
        ("gpt-2", {"add_bos_token": True}, True),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": None}, False),
    ],
)
def test_raw_texts_open_with_bos_where_the_file_says_so_and_chats_never_do(pre, fields, opens):
    tokenizer = read_tokenizer(Metadata(pre, **fields))
    plain = tokenizer.encode("ab")
    assert BOS not in plain
    assert tokenizer.encode("ab", add_special_tokens=True) == [BOS] * opens + plain


def test_llama_3_prefers_whole_tokens_to_merges():
    assert read_tokenizer(Metadata("llama-bpe")).encode("xyz") == [WHOLE]
    assert len(read_tokenizer(Metadata("gpt-2")).encode("xyz")) == 3


def test_unknown_models_and_pre_tokenizers_are_refused():
    with pytest.raises(FormatError, match="'t5' is not supported"):
        read_tokenizer(Metadata("gpt-2", model="t5"))
    with pytest.raises(FormatError, match="pre-tokenizer 'new' is not known"):
        read_tokenizer(Metadata("new"))
