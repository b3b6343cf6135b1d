"""Between text and token ids: one tokenizer with its chat template, and text that grows token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from dspark.data.chat import ChatTemplate, Message
from dspark.errors import ConfigError, FormatError


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Encodes prompts and chats, decodes answers. `template` is None for a model without a chat template."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the special tokens that the tokenizer itself adds."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def encode_chat(self, messages: Sequence[Message], *, thinking: bool = False) -> list[int]:
        """Ids of a chat, up to where the assistant begins to answer.

        Raises:
            ConfigError: the model has no chat template, or the template refuses the messages.
        """
        if self.template is None:
            raise ConfigError("This target has no chat template. Give it a raw prompt (--raw).")
        text = self.template.render(messages, thinking=thinking)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of finished ids, special tokens left out."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def detokeniser(self) -> "TextStream":
        """A fresh stream for one answer."""
        return TextStream(self.tokenizer)


class TextStream:
    """Text of tokens that arrive one by one; bytes of an unfinished character are held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """The text that became final with `token`."""
        self._held.append(token)
        text: str | None = self._stream.step(self._tokenizer, token)
        if text is None:
            return ""
        self._held.clear()
        return text

    def flush(self) -> str:
        """What was held back, unfinished characters as U+FFFD."""
        text: str = self._tokenizer.decode(self._held, skip_special_tokens=True)
        self._held.clear()
        return text


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json. Raises FormatError if it cannot be read."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises plain Exception
        raise FormatError(f"{path} is not a readable tokenizer.json: {error}. Restore it from the model.") from error
