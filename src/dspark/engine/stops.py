"""Where a text ends: stop tokens, stop strings, the token limit. And what of it may be shown already."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from dspark.engine.result import Commit, TextEnd
from dspark.errors import ConfigError


class Detokeniser(Protocol):
    """Text of tokens that arrive one by one; it holds back what later tokens may change (incomplete characters)."""

    def push(self, token: int) -> str:
        """The text that became final with `token`."""
        ...

    def flush(self) -> str:
        """The text still held back."""
        ...


class StopScanner:
    """Passes text on until a stop string appears; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that can be shown after `piece` arrived; with a stop string `found`, all before it."""
        text = self._held + piece
        ends = [index for stop in self._stops if (index := text.find(stop)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, which no stop string can claim any more."""
        text, self._held = self._held, ""
        return text


class Output:
    """The tokens of one request, up to where its text ends; tokens after that are dropped.

    A stop token is the last of `token_ids` but not part of the text. A stop string is not part of the text either;
    the token that completes it is the last. `limit` tokens are the most.
    """

    def __init__(
        self, limit: int, stop_ids: Iterable[int], stop_strings: Sequence[str], detokeniser: Detokeniser | None
    ) -> None:
        if stop_strings and detokeniser is None:
            raise ConfigError(f"stop is {tuple(stop_strings)!r}, but there is no detokeniser to find it in the text")
        self._limit, self._stop_ids = limit, frozenset(stop_ids)
        self._scanner, self._detokeniser = StopScanner(stop_strings), detokeniser
        self.token_ids: list[int] = []
        self.finish_reason: TextEnd | None = None

    @property
    def ended_by_token(self) -> bool:
        """Whether the last token is a stop token."""
        return bool(self.token_ids) and self.token_ids[-1] in self._stop_ids

    def take(self, tokens: Iterable[int]) -> Commit:
        """Append `tokens` until one of them ends the text."""
        start, pieces = len(self.token_ids), []
        for token in tokens:
            pieces.append(self._append(token))
            if self.finish_reason is not None:
                pieces.append(self._rest())
                break
        return Commit(tuple(self.token_ids[start:]), "".join(pieces))

    def _append(self, token: int) -> str:
        self.token_ids.append(token)
        if token in self._stop_ids:
            self.finish_reason = "stop"
            return ""
        piece = "" if self._detokeniser is None else self._scanner.push(self._detokeniser.push(token))
        if self._scanner.found:
            self.finish_reason = "stop"
        elif len(self.token_ids) == self._limit:
            self.finish_reason = "length"
        return piece

    def _rest(self) -> str:
        if self._detokeniser is None or self._scanner.found:
            return ""
        return self._scanner.push(self._detokeniser.flush()) + self._scanner.flush()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
