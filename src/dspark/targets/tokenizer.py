"""Text to token ids and back, for whole texts and for streams."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer

from dspark.errors import FormatError
from dspark.targets.json_file import read_json

_INCOMPLETE = "\ufffd"
"""What decoders put where bytes do not form a character (yet)."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Token ids and, for each, the (start, end) characters of the text that it covers."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Strings that chat templates name; empty where the tokenizer has none."""

    bos: str = ""
    eos: str = ""


class Tokenizer:
    """A `tokenizers` tokenizer with the special tokens and the chat template (source text, or None) beside it."""

    def __init__(self, raw: RawTokenizer, special: SpecialTokens, chat_template: str | None = None) -> None:
        self._raw = raw
        self._raw.no_truncation()
        self._raw.no_padding()
        self.special = special
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        """Number of ids that have a token, added ones included."""
        return int(self._raw.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; rendered chats carry their special tokens already, so none are added by default."""
        return list(self._raw.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_with_offsets(self, text: str) -> Encoding:
        """Token ids of `text` and the characters that each covers; the tokens of one split character share it."""
        encoding = self._raw.encode(text, add_special_tokens=False)
        return Encoding(tuple(encoding.ids), tuple(encoding.offsets))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""
        return str(self._raw.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_id(self, token: str) -> int | None:
        """Id of the token that is spelled `token` in the vocabulary, None if there is none."""
        found: int | None = self._raw.token_to_id(token)
        return found

    def stream(self, *, skip_special_tokens: bool = True) -> "TokenStream":
        """A decoder for tokens that arrive one by one."""
        return TokenStream(self, skip_special_tokens)

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`."""
        self._raw.save(str(path))

    @classmethod
    def from_directory(cls, directory: Path) -> "Tokenizer":
        """Read `tokenizer.json`, the special tokens and the chat template of a Hugging Face directory."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise FormatError(f"{directory} holds no tokenizer.json; dspark needs the fast tokenizer's file")
        try:
            raw = RawTokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises bare Exception
            raise FormatError(f"{path} is not a readable tokenizer ({error}); download it again") from error
        return cls(raw, _special_tokens(directory, raw), read_chat_template(directory))


class TokenStream:
    """Decodes a growing sequence; text is given out once its last character is complete."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, *token_ids: int) -> str:
        """The text that `token_ids` complete, possibly none."""
        self._pending.extend(token_ids)
        text = self._pending_text()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        # The tokens just written stay as context: some decoders treat the first token of a text differently.
        self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """What is left, with U+FFFD for bytes that never became a character."""
        text = self._pending_text()
        self._context, self._pending = [], []
        return text

    def _pending_text(self) -> str:
        before = self._tokenizer.decode(self._context, skip_special_tokens=self._skip)
        both = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=self._skip)
        return both[len(before) :]


def _special_tokens(directory: Path, raw: RawTokenizer) -> SpecialTokens:
    """From tokenizer_config.json, else the first id that the generation or model configuration names."""
    settings, generation, config = (
        read_json(directory / f"{name}.json") for name in ("tokenizer_config", "generation_config", "config")
    )

    def token(kind: str) -> str:
        declared = settings.get(f"{kind}_token")
        if declared is not None:
            return str(declared["content"] if isinstance(declared, dict) else declared)
        ids = generation.get(f"{kind}_token_id", config.get(f"{kind}_token_id"))
        first = next(iter(ids), None) if isinstance(ids, Iterable) else ids
        return "" if first is None else raw.id_to_token(first) or ""

    return SpecialTokens(token("bos"), token("eos"))


def read_chat_template(directory: Path) -> str | None:
    """The source of a directory's chat template: chat_template.jinja, else the default one of tokenizer_config.json."""
    path = directory / "chat_template.jinja"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
        declared = read_json(directory / "tokenizer_config.json").get("chat_template")
        if isinstance(declared, list):
            declared = {entry["name"]: entry["template"] for entry in declared}.get("default")
    except (UnicodeDecodeError, KeyError, TypeError) as error:
        raise FormatError(f"{directory} holds no readable chat template ({error!r}); download it again") from error
    return None if declared is None else str(declared)
