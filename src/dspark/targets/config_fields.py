"""Typed access to a target's config.json, whose mistakes become one readable line."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The entries of a config.json, or of an object inside it; null counts as absent.

    Getters raise ConfigError (key, found, expected) for another type, and for what is absent without a default.
    """

    entries: Mapping[str, Any]

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._value(key, default)
        if not _is_integer(value) or value <= 0:
            raise mistake(key, value, "a positive integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if not _is_number(value) or value <= 0:
            raise mistake(key, value, "a number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None."""
        value = self._value(key, None)
        if value is not None and not _is_number(value):
            raise mistake(key, value, "a number")
        return None if value is None else float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise mistake(key, value, "true or false")
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None."""
        value = self._value(key, None)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or any(not isinstance(name, str) for name in value):
            raise mistake(key, value, "a list of strings")
        return tuple(value)

    def ids(self, key: str) -> tuple[int, ...]:
        """The token ids of a field that holds none, one or several."""
        value = self._value(key, None)
        if value is None:
            return ()
        ids = value if isinstance(value, list | tuple) else (value,)
        if any(not _is_integer(token) or token < 0 for token in ids):
            raise mistake(key, value, "a token id or a list of them")
        return tuple(ids)

    def object(self, key: str) -> "ConfigFields":
        """A nested object, empty if absent."""
        value = self._value(key, None)
        if value is not None and not isinstance(value, Mapping):
            raise mistake(key, value, "an object")
        return ConfigFields(value or {})

    def has(self, key: str) -> bool:
        """Whether the key is there, with another value than null."""
        return self.entries.get(key) is not None

    def _value(self, key: str, default: Any) -> Any:
        value = self.entries.get(key)
        return default if value is None else value


def mistake(key: str, value: object, expected: str) -> ConfigError:
    """The error for a field that holds something else than expected."""
    return ConfigError(f"config.json has {key} = {value!r}; expected {expected}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
