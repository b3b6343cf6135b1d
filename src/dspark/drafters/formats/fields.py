"""Typed access to a config.json, whose mistakes become one readable line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import FormatError

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fields:
    """The entries of one JSON object of `source`. Getters raise FormatError: key, found, expected."""

    source: Path
    entries: JsonObject

    @classmethod
    def read(cls, path: Path) -> "Fields":
        """Parse a JSON file whose top level is an object."""
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FormatError(f"{path} does not exist; a drafter directory needs it beside its weights") from None
        except (OSError, ValueError) as error:
            raise FormatError(f"{path} is not readable JSON: {error}") from error
        if not isinstance(entries, dict):
            raise FormatError(f"{path} holds a {type(entries).__name__}, expected a JSON object")
        return cls(path, entries)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._present(key, default, "a whole number")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._mistake(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """An integer or floating-point number."""
        value = self._present(key, default, "a number")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._mistake(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._present(key, default, "true or false")
        if not isinstance(value, bool):
            raise self._mistake(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._present(key, default, "a string")
        if not isinstance(value, str):
            raise self._mistake(key, value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self._present(key, None, "a list of whole numbers")
        if not isinstance(value, list) or any(not isinstance(v, int) or isinstance(v, bool) for v in value):
            raise self._mistake(key, value, "a list of whole numbers")
        return tuple(value)

    def object(self, key: str) -> "Fields":
        """A nested object; empty when the key is absent or null."""
        value = self.entries.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._mistake(key, value, "an object")
        return Fields(self.source, value or {})

    def require(self, key: str, expected: Any, default: Any) -> None:
        """Refuse any value but `expected`."""
        value = self.entries.get(key, default)
        if value != expected:
            raise self._mistake(key, value, f"{expected!r}, which is all that this reader supports")

    def _present(self, key: str, default: Any, expected: str) -> Any:
        value = self.entries.get(key, default)
        if value is None:
            raise FormatError(f"{self.source} lacks `{key}`; expected {expected}")
        return value

    def _mistake(self, key: str, value: Any, expected: str) -> FormatError:
        return FormatError(f"{self.source}: `{key}` is {value!r}, expected {expected}")
