"""The GGUF container: metadata, and where each tensor's bytes lie. Versions 2 and 3, little-endian.

Source: the GGUF specification (ggml repository, docs/gguf.md). The reader of the `gguf` package takes 60 microseconds
per vocabulary entry, six seconds for a small model.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 8
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> `struct` format character."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `shape` with the fastest axis first, ggml type number, and its first byte's place in the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What precedes the tensor data of a GGUF file."""

    fields: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


class _Cursor:
    """Reads values one after another; ValueError at the end of the bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{code}") * count
        return struct.unpack(f"<{count}{code}", self._take(size))

    def string(self) -> str:
        return bytes(self._take(self.number("Q"))).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_format(kind))
        element, count = self.number("I"), self.number("Q")
        if element == _STRING:
            return [self.string() for _ in range(count)]
        return list(self.numbers(_format(element), count))

    def _take(self, size: int) -> memoryview:
        start, self.position = self.position, self.position + size
        if self.position > len(self._data):
            raise ValueError(f"it ends at byte {len(self._data)}, within its header")
        return self._data[start : self.position]


def read_layout(data: memoryview, tensor_bytes: Callable[[TensorEntry], int]) -> Layout:
    """Parse the header of the file's bytes; `tensor_bytes` tells how long a tensor is.

    Raises:
        ValueError: not GGUF, another version, truncated, or malformed; the message says which.
    """
    cursor = _Cursor(data)
    if bytes(data[:4]) != MAGIC:
        raise ValueError(f"it starts with {bytes(data[:4])!r}, not {MAGIC!r}")
    cursor.position = 4
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version}, expected one of {_VERSIONS}")
    tensor_count, field_count = cursor.numbers("Q", 2)
    fields = {cursor.string(): cursor.value(cursor.number("I")) for _ in range(field_count)}
    entries = [_entry(cursor) for _ in range(tensor_count)]
    alignment = fields.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError(f"general.alignment is {alignment!r}")
    base = -(-cursor.position // alignment) * alignment
    tensors = tuple(TensorEntry(e.name, e.shape, e.type, base + e.start) for e in entries)
    for entry in tensors:
        if entry.start + tensor_bytes(entry) > len(data):
            raise ValueError(f"it ends at byte {len(data)}, within tensor {entry.name}")
    return Layout(fields, tensors)


def _entry(cursor: _Cursor) -> TensorEntry:
    name, dimensions = cursor.string(), cursor.number("I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"tensor {name} claims {dimensions} dimensions")
    return TensorEntry(name, cursor.numbers("Q", dimensions), cursor.number("I"), cursor.number("Q"))


def _format(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"unknown metadata type {kind}")
    return _NUMBERS[kind]
