"""Records of answers on disk: loose ones that were just made, and shards that hold many.

A record is first written to a file of its own, whole or not at all, so that a kill loses the record at work and nothing
else. Once `shard_bytes` of them have been written they are packed into a shard, and removed. A shard is a safetensors
file in which the rows of many records follow each other; its metadata is the index: where whose rows lie. Rows are read
through a memory map. Several processes may use one directory: they make records twice at worst.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dspark.errors import CompatibilityError, FormatError

SHARD_BYTES = 128 << 20
"""Packing holds a shard in memory up to three times, so shards are not larger than they need to be."""

FEATURE_TENSORS, LAW_TENSORS = ("features", "scales"), ("ids", "probabilities")
"""Tensors with a row per feature, and with a row per law; `scales` are there in fp8 only."""

_SUFFIX, _SHARD = ".safetensors", "shard-"
_CURE = "Use another directory, or empty this one."
_DEFAULTS = {"precision": "bf16"}
"""What files of early versions were made with, and do not say."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Rows of one record in a shard: [start, stop) of features and of laws."""

    shard: Path
    features: tuple[int, int]
    laws: tuple[int, int]


@dataclass(slots=True)
class FeatureStore:
    """The records in `directory` that were made from `origin` (target, taps, top_k, precision).

    A record goes by its key, which says all else that decides it: a digest of its tokens. It is a mapping of the
    tensors in `FEATURE_TENSORS` and `LAW_TENSORS`.
    """

    directory: Path
    origin: Mapping[str, str]
    shard_bytes: int = SHARD_BYTES
    _places: dict[str, _Place] = field(init=False, default_factory=dict)
    _seen: set[Path] = field(init=False, default_factory=set)
    _fresh: dict[str, int] = field(init=False, default_factory=dict)

    def read(self, key: str) -> dict[str, Tensor] | None:
        """The record under `key`, None if there is none.

        Raises:
            FormatError: its file is damaged.
            CompatibilityError: its file was made from something else.
        """
        if key in self._places:
            return self._from_shard(self._places[key])
        loose = self._from_file(key)
        if loose is not None:
            return loose
        self._scan()
        return self._from_shard(self._places[key]) if key in self._places else None

    def write(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep a record. Raises OSError with the file's name if it cannot be written; earlier ones stay."""
        self.directory.mkdir(parents=True, exist_ok=True)
        size = _write(self._loose(key), tensors, {**self.origin, "tokens": key})
        self._fresh[key] = size
        if sum(self._fresh.values()) >= self.shard_bytes:
            self._pack(list(self._fresh))
            self._fresh.clear()

    def pack(self) -> int:
        """Pack every loose record, whoever wrote it; the number of them. Killed, it loses nothing."""
        self._scan()
        loose = sorted(path for path in self.directory.glob(f"*{_SUFFIX}") if not path.name.startswith(_SHARD))
        batch: list[str] = []
        size = 0
        for path in loose:
            batch.append(path.stem)
            size += path.stat().st_size
            if size >= self.shard_bytes:
                self._pack(batch)
                batch, size = [], 0
        self._pack(batch)
        self._fresh.clear()
        return len(loose)

    def _loose(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    def _from_file(self, key: str) -> dict[str, Tensor] | None:
        path = self._loose(key)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                origin = file.metadata() or {}
                names = list(file.keys())
                tensors = {name: file.get_tensor(name) for name in names}
        except FileNotFoundError:  # another process has just packed it
            return None
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{path} is not a teacher record: {error}. Remove it; it is made again.") from error
        _check_origin(path, origin, {**self.origin, "tokens": key})
        if missing := {"features", *LAW_TENSORS} - tensors.keys():
            raise FormatError(f"{path} is not a teacher record: no {', '.join(sorted(missing))}. Remove it.")
        return tensors

    def _from_shard(self, place: _Place) -> dict[str, Tensor]:
        try:
            with safe_open(place.shard, framework="pt") as file:
                names = set(file.keys())
                rows = dict.fromkeys(FEATURE_TENSORS, place.features) | dict.fromkeys(LAW_TENSORS, place.laws)
                return {name: file.get_slice(name)[slice(*rows[name])] for name in rows if name in names}
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{place.shard} cannot be read: {error}. Remove it; it is made again.") from error

    def _scan(self) -> None:
        """Take up the indices of shards that were not there before."""
        for path in sorted(set(self.directory.glob(f"{_SHARD}*{_SUFFIX}")) - self._seen):
            try:
                with safe_open(path, framework="pt") as file:
                    metadata = file.metadata() or {}
                index = json.loads(metadata["records"])
                places = {key: _Place(path, (rows[0], rows[1]), (rows[2], rows[3])) for key, rows in index.items()}
            except (OSError, SafetensorError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
                raise FormatError(
                    f"{path} is not a shard of records: {error!r}. Remove it; they are made again."
                ) from error
            _check_origin(path, metadata, self.origin)
            self._places = places | self._places
            self._seen.add(path)

    def _pack(self, keys: Sequence[str]) -> None:
        found = {key: tensors for key in keys if key not in self._places and (tensors := self._from_file(key))}
        if found:
            # Named by what it holds: whoever packs the same records writes the same file.
            name = hashlib.sha256("".join(found).encode()).hexdigest()[:16]
            tensors, index = _joined(found)
            _write(self.directory / f"{_SHARD}{name}{_SUFFIX}", tensors, {**self.origin, "records": json.dumps(index)})
            self._scan()
        for key in keys:
            if key in self._places:
                self._loose(key).unlink(missing_ok=True)


def _joined(records: Mapping[str, Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """All rows of all records, and where whose features and laws start and stop."""
    index: dict[str, list[int]] = {}
    feature = law = 0
    for key, tensors in records.items():
        features, laws = len(tensors["features"]), len(tensors["ids"])
        index[key] = [feature, feature + features, law, law + laws]
        feature, law = feature + features, law + laws
    names = next(iter(records.values())).keys()
    return {name: torch.cat([tensors[name] for tensors in records.values()]) for name in names}, index


def _write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """Write a file whole or not at all; its size."""
    # Features are a view of a padded batch: safetensors wants memory of their own.
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, dict(metadata))
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = str(path)
        raise
    return len(data)


def _check_origin(path: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    told = {**_DEFAULTS, **found}
    different = [f"{key} {told.get(key)!r}, expected {value!r}" for key, value in _differing(told, expected)]
    if different:
        raise CompatibilityError(f"{path} was made for {'; '.join(different)}. {_CURE}")


def _differing(found: Mapping[str, str], expected: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ((key, value) for key, value in expected.items() if found.get(key) != value)
