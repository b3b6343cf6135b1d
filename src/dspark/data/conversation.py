"""Conversations to be answered: what the user says, turn by turn."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspark.data.chat import Message
from dspark.errors import FormatError

_SYSTEM, _USER = frozenset({"system", "developer"}), frozenset({"user", "human"})
_ASSISTANT = frozenset({"assistant", "gpt", "model", "chatgpt", "bing", "bard"})
"""Roles as public data sets spell them."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The user's messages `turns`, each to be answered by the target itself before the next one is said."""

    id: str
    domain: str
    turns: tuple[str, ...]
    system: str | None = None

    @property
    def digest(self) -> str:
        """First 16 hex digits of a sha256 of all that is said: tells conversations apart whatever they are called."""
        said = (self.system or "", *self.turns)
        return hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]

    def answer_id(self, turn: int) -> str:
        """Id of the answer to the 0-based `turn`: the conversation's own, with `/1`, `/2`, ... if it has several."""
        return self.id if len(self.turns) == 1 else f"{self.id}/{turn + 1}"

    def messages(self, answers: Sequence[str]) -> tuple[Message, ...]:
        """The chat up to the turn that follows `answers`."""
        chat = [] if self.system is None else [Message("system", self.system)]
        for turn, answer in zip(self.turns, answers, strict=False):
            chat += [Message("user", turn), Message("assistant", answer)]
        return (*chat, Message("user", self.turns[len(answers)]))


def parse_conversation(row: Mapping[str, Any], where: str, default_id: str) -> Conversation:
    """The conversation of a row with `turns`, `prompt`, `messages` or `conversations`.

    Answers in a chat log are left out: the target gives its own. `where` names the row in errors.

    Raises:
        FormatError: the row holds none of the four, or nothing that a user says, or a role that is not known.
    """
    system, turns = _said(row, where)
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise FormatError(
            f"{where}: expected `turns` (strings), `prompt` (a string) or `messages` (role, content) with something a "
            f"user says, found {_shown(row)}."
        )
    _check_text(where, (system or "", *turns))
    name = row.get("id")
    return Conversation(default_id if name is None else str(name), str(row.get("domain") or ""), tuple(turns), system)


def _said(row: Mapping[str, Any], where: str) -> tuple[str | None, list[Any]]:
    log = next((row[key] for key in ("messages", "conversations") if isinstance(row.get(key), list)), None)
    if log is not None:
        return _from_log(log, where)
    turns = row.get("turns", row.get("prompt"))
    system = row.get("system")
    return system if isinstance(system, str) else None, turns if isinstance(turns, list) else [turns]


def _from_log(log: Sequence[Any], where: str) -> tuple[str | None, list[Any]]:
    system, turns = None, []
    for entry in log:
        fields = entry if isinstance(entry, Mapping) else {}
        role, text = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
        if role in _SYSTEM:
            system = text
        elif role in _USER:
            turns.append(text)
        elif role not in _ASSISTANT:
            raise FormatError(f"{where}: a message has role {role!r}; expected system, user or assistant.")
    return system, turns


def _check_text(where: str, texts: Sequence[str]) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{where}: a text holds half a character (a lone surrogate), {error.reason}.") from error


def _shown(row: Mapping[str, Any]) -> str:
    text = repr(dict(row))
    return text if len(text) <= 120 else f"{text[:117]}..."
