"""Prompts in, text out: a target's tokenizer together with the one chat template function."""

from collections.abc import Sequence

from dspark.data.chat import ChatTemplate, Message
from dspark.errors import ConfigError
from dspark.targets.tokenizer import Tokenizer, TokenStream


class TextCodec:
    """Encodes raw prompts and chats, decodes answers as they come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        source, special = tokenizer.chat_template, tokenizer.special
        self.template = None if source is None else ChatTemplate(source, special.bos, special.eos)

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the special tokens that the tokenizer itself puts around a text."""
        return self._tokenizer.encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Message], *, thinking: bool = False) -> list[int]:
        """Ids of a chat, up to where the assistant begins to answer.

        Raises:
            ConfigError: there is no chat template, or it refuses the messages.
        """
        if self.template is None:
            raise ConfigError("This target has no chat template. Give it a raw prompt instead (--raw).")
        return self._tokenizer.encode(self.template.render(messages, thinking=thinking))

    def detokeniser(self) -> "AnswerText":
        """A fresh stream for one answer."""
        return AnswerText(self._tokenizer.stream())


class AnswerText:
    """The loop's view of a token stream: special tokens are left out, unfinished characters held back."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream

    def push(self, token: int) -> str:
        """The text that became final with `token`."""
        return self._stream.push(token)

    def flush(self) -> str:
        """The text still held back."""
        return self._stream.finish()
