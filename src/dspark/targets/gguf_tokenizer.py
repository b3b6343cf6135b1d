"""Builds a tokenizer from the tokens, merges and pre-tokenizer name of a GGUF file."""

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer

from dspark.errors import FormatError
from dspark.targets.gguf_reader import GGUFFile
from dspark.targets.tokenizer import SpecialTokens, Tokenizer

_LLAMA3 = "llama-bpe"
"""Llama 3's pre-tokenizer, whose tokenizers prefer whole tokens to merges and open raw texts with BOS."""

_CONTROL, _USER_DEFINED = 3, 4

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    """The byte-level BPE tokenizer of `file`; FormatError for other models and unknown pre-tokenizers."""
    model, name = file.field("tokenizer.ggml.model"), file.field("tokenizer.ggml.pre", "default")
    if model != "gpt2":
        raise FormatError(f"{file.path}: tokenizer model {model!r} is not supported, only byte-level BPE ('gpt2')")
    if name not in _PRE_TOKENIZERS:
        raise FormatError(f"{file.path}: pre-tokenizer {name!r} is not known (known: {', '.join(_PRE_TOKENIZERS)})")
    tokens = file.required("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.required("tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=name == _LLAMA3))
    raw.pre_tokenizer = _PRE_TOKENIZERS[name]()
    raw.decoder = decoders.ByteLevel()
    if name == "qwen2":
        raw.normalizer = normalizers.NFC()
    _add_special(raw, tokens, file.field("tokenizer.ggml.token_type", []))
    special = SpecialTokens(*(_token(file, tokens, kind) for kind in ("bos", "eos")))
    if special.bos and file.field("tokenizer.ggml.add_bos_token", name == _LLAMA3):
        raw.post_processor = processors.TemplateProcessing(
            single=[special.bos, "$A"], special_tokens=[(special.bos, vocab[special.bos])]
        )
    return Tokenizer(raw, special, file.field("tokenizer.chat_template"))


def _add_special(raw: RawTokenizer, tokens: list[str], kinds: list[int]) -> None:
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
    raw.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False) for token, kind in added])


def _token(file: GGUFFile, tokens: list[str], kind: str) -> str:
    index = file.field(f"tokenizer.ggml.{kind}_token_id")
    return "" if index is None else tokens[index]


def _single_digits() -> Any:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _words(digits: str) -> Any:
    split = pre_tokenizers.Split(Regex(f"{_LETTERS}|{digits}|{_REST}"), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    _LLAMA3: lambda: _words(r"\p{N}{1,3}"),
    "qwen2": lambda: _words(r"\p{N}"),
}
