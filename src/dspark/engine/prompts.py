"""What callers give as prompts, and what cannot be one."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol, TypeAlias

from dspark.engine.stops import Detokeniser
from dspark.errors import ConfigError

Prompt: TypeAlias = str | Sequence[int]
"""A raw text, or the ids of a rendered prompt."""


class Codec(Protocol):
    """Turns texts into tokens and back; `dspark.data.text.TextCodec` is one."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a raw text."""
        ...

    def detokeniser(self) -> Detokeniser:
        """What turns the tokens of one answer into text."""
        ...


def token_ids(prompt: object) -> list[int]:
    """The ids of a prompt that is no text: a list, an array or a tensor of whole numbers.

    Raises:
        ConfigError: it is something else; the message says what.
    """
    for item in (items := _items(prompt, "token ids")):
        if not _whole(item):
            raise ConfigError(f"the prompt holds {_told(item)}; expected token ids, which are whole numbers")
    return [int(item) for item in items]


def prompt_list(prompts: object) -> list[Prompt]:
    """One prompt or several, as a list.

    Raises:
        ConfigError: it is neither, or texts or lists stand among token ids.
    """
    if isinstance(prompts, str):
        return [prompts]
    items = _items(prompts, "a text, token ids, or a list of such prompts")
    if items and all(map(_whole, items)):
        return [token_ids(items)]
    if any(map(_whole, items)):
        odd = next(item for item in items if not _whole(item))
        raise ConfigError(f"{_told(odd)} stands among token ids; expected token ids alone, or a list of prompts")
    return [item if isinstance(item, str) else token_ids(item) for item in items]


def _items(value: object, expected: str) -> list[Any]:
    listed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise ConfigError(f"the prompt is {_told(value)}; expected {expected}")
    return list(listed)


def _whole(item: object) -> bool:
    return type(item) is int or (isinstance(item, Integral) and not isinstance(item, bool))


def _told(value: object) -> str:
    return f"{value!r:.60} of type {type(value).__name__}"
