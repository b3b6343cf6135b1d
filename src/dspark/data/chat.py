"""The one function that renders chats, for every stage from regeneration to serving (contract 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dspark.errors import ConfigError, FormatError


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template as tokenizers ship it, with the special tokens that it may name."""

    source: str
    bos_token: str = ""
    eos_token: str = ""

    @cached_property
    def _compiled(self) -> Template:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            return environment.from_string(self.source)
        except TemplateError as error:
            raise FormatError(
                f"The chat template cannot be compiled: {error}. Check the tokenizer's chat template."
            ) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, thinking: bool = False) -> str:
        """The text of `messages`, ready to be encoded without adding special tokens again.

        `add_generation_prompt` opens the assistant's turn. `thinking` is passed on for templates that know it.
        """
        if not messages:
            raise ConfigError("A chat needs at least one message, none was given.")
        try:
            return self._compiled.render(
                messages=[{"role": message.role, "content": message.content} for message in messages],
                add_generation_prompt=add_generation_prompt,
                enable_thinking=thinking,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
            )
        except TemplateError as error:
            raise ConfigError(
                f"The chat template refuses these messages: {error}. Check their roles and order."
            ) from error


def user_turn(prompt: str, system: str | None = None) -> tuple[Message, ...]:
    """The messages of a one-question chat."""
    opening = () if system is None else (Message("system", system),)
    return (*opening, Message("user", prompt))


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)
