"""Exact tokens of an answer: the rendered chat and what follows it, encoded once and cut where the answer begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from dspark.data.chat import ChatTemplate, Message
from dspark.data.text import TextCodec
from dspark.errors import ConfigError, FormatError
from dspark.targets.checkpoint import template_hash
from dspark.targets.tokenizer import Tokenizer

_SENTINEL = "ANSWER"


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A chat up to where the assistant begins: its text, and the ids that a server is given."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """Both sides of the loss mask: nothing of `prompt_ids` is supervised, all of `response_ids` is."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


class Transcriber:
    """Renders chats with a target's own template, and turns answers back into its tokens.

    Raises:
        ConfigError: the target has no chat template, or no token that ends an answer.
    """

    def __init__(self, tokenizer: Tokenizer, thinking: bool = False) -> None:
        template = TextCodec(tokenizer).template
        if template is None:
            raise ConfigError("This target has no chat template, so its answers to chats cannot be written.")
        self._tokenizer, self._template = tokenizer, template
        self.thinking = thinking
        self.template_hash = template_hash(tokenizer.chat_template)
        self._end = _end_text(tokenizer, template, thinking)
        (self.end_id,) = tokenizer.encode(self._end)

    def render(self, messages: Sequence[Message]) -> RenderedPrompt:
        """The chat as every stage renders it (contract 4)."""
        text = self._template.render(messages, thinking=self.thinking)
        return RenderedPrompt(text, tuple(self._tokenizer.encode(text)))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of an answer without its end token."""
        return self._tokenizer.decode(token_ids)

    def from_ids(self, prompt: RenderedPrompt, token_ids: Sequence[int], *, finished: bool) -> AnswerTokens:
        """The tokens that a server reports; a `finished` answer gets the end token that some servers leave out.

        Raises:
            FormatError: an id is outside the vocabulary.
        """
        foreign = next((token for token in token_ids if not 0 <= token < self._tokenizer.vocab_size), None)
        if foreign is not None:
            raise FormatError(
                f"the answer holds token id {foreign}, outside the {self._tokenizer.vocab_size} ids of the target's "
                "tokenizer; name the model that the endpoint serves as --target"
            )
        response = tuple(token_ids)
        if finished and not self._ends(response):
            response += (self.end_id,)
        return AnswerTokens(prompt.token_ids, response)

    def from_text(self, prompt: RenderedPrompt, text: str, *, finished: bool) -> AnswerTokens:
        """The tokens of an answer that is known as text only.

        Prompt and answer are encoded as one text, so the first token of the answer is what it is in context. A token
        that spans the boundary belongs to the prompt: no one may learn to predict half of it. An unfinished answer
        gets no end token, and loses the character that its limit cut in half.

        Raises:
            FormatError: the text is no Unicode, or spells the end token, which would end it where it did not end.
        """
        text = text if finished else text.rstrip("\ufffd")
        try:
            encoding = self._tokenizer.encode_with_offsets(prompt.text + text + (self._end if finished else ""))
        except (UnicodeEncodeError, TypeError) as error:
            raise FormatError(f"the answer is no Unicode text: {error}") from error
        begin = len(prompt.text)
        split = next((i for i, (start, _) in enumerate(encoding.offsets) if start >= begin), len(encoding.ids))
        response = encoding.ids[split:]
        if self.end_id in (response[:-1] if finished else response):
            raise FormatError(f"the answer spells {self._end!r}, which ends an answer, in the middle of its text")
        return AnswerTokens(encoding.ids[:split], response)

    def _ends(self, response: Sequence[int]) -> bool:
        return bool(response) and self._tokenizer.decode(response[-1:]) == ""


def _end_text(tokenizer: Tokenizer, template: ChatTemplate, thinking: bool) -> str:
    """The special token with which the template closes an answer, else the tokenizer's own end of text."""
    chat = (Message("user", "Hi"), Message("assistant", _SENTINEL))
    closing = template.render(chat, add_generation_prompt=False, thinking=thinking).rpartition(_SENTINEL)[2]
    encoding = tokenizer.encode_with_offsets(closing)
    if encoding.ids and tokenizer.decode(encoding.ids[:1]) == "":
        return closing[: encoding.offsets[0][1]]
    if len(tokenizer.encode(tokenizer.special.eos)) == 1:
        return tokenizer.special.eos
    raise ConfigError("Neither the chat template nor the tokenizer names a token that ends an answer.")
