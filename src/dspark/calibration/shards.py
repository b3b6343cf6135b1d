"""Records on disk: a directory of safetensors shards, appended to, never rewritten, readable after any interruption."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dspark.calibration.records import RoundRecords, concatenate
from dspark.errors import CompatibilityError, FormatError

VERSION = 4
_STORED = {
    "confidence": np.float32,
    "peak": np.float16,
    "entropy": np.float16,
    "overlap": np.float16,
    "history": np.float32,
    "accepted": np.uint8,
    "judged": np.uint8,
    "position": np.int32,
    "request": np.uint64,
    "domain": np.uint16,
    "draft_mode": np.uint8,
    "temperature": np.float32,
}
"""Type of each field on disk; a domain is stored as its place in the list of names of its shard."""


class RecordStore:
    """The records in `directory`, all made with the same `settings` (drafter, target, sampling and the like).

    Every `append` writes one shard, whole or not at all. One writer at a time.

    Raises:
        FormatError: a shard cannot be read.
        CompatibilityError: shards were made with other settings; the message names them.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        self._directory = directory
        self._settings = json.loads(json.dumps(settings))
        for path in shard_paths(directory):
            _check_settings(path, self._settings)

    def append(self, records: RoundRecords) -> None:
        """Write a shard; nothing for no records."""
        if not len(records):
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        last = max((int(path.stem.split("-")[1]) for path in shard_paths(self._directory)), default=-1)
        write_shard(self._directory / f"rounds-{last + 1:05d}.safetensors", records, self._settings)

    def read(self) -> RoundRecords:
        """All records; FormatError if there are none."""
        return read_records([self._directory])

    def requests(self) -> frozenset[tuple[int, str]]:
        """Number and domain of the requests that have records: a prompt may be in two domains."""
        parts = [read_shard(path) for path in shard_paths(self._directory)]
        return frozenset(key for part in parts for key in part.origins())


def shard_paths(directory: Path) -> list[Path]:
    """The shards of a directory, oldest first; none if it does not exist."""
    return sorted(directory.glob("rounds-*.safetensors"))


def read_records(paths: Sequence[Path]) -> RoundRecords:
    """The records of files and of directories' shards, whoever recorded them.

    Raises FormatError for what does not exist or cannot be read, and where there is nothing.
    """
    for path in paths:
        if not path.exists():
            raise FormatError(f"{path} does not exist; expected recorded rounds, a shard or a directory of them")
    shards = [shard for path in paths for shard in (shard_paths(path) if path.is_dir() else [path])]
    if not shards:
        raise FormatError(f"{', '.join(map(str, paths))}: no rounds-*.safetensors there; expected recorded rounds")
    return concatenate([read_shard(shard) for shard in shards])


def write_shard(path: Path, records: RoundRecords, settings: Mapping[str, Any]) -> None:
    """Write records, then give the file its name, so that no reader ever sees a part of it."""
    names, places = np.unique(records.domain, return_inverse=True)
    arrays = records.arrays() | {"domain": places}
    stored = {name: np.ascontiguousarray(value.astype(_STORED[name])) for name, value in arrays.items()}
    metadata = {"version": VERSION, "domains": names.tolist(), "settings": dict(settings)}
    partial = path.with_suffix(".partial")
    partial.write_bytes(save(stored, {key: json.dumps(value) for key, value in metadata.items()}))
    partial.replace(path)


def read_shard(path: Path) -> RoundRecords:
    """The records of one file; FormatError if it is none or is inconsistent."""
    try:
        with safe_open(path, framework="numpy") as file:
            domains = np.array(json.loads(_metadata(file, path)["domains"]), dtype=np.str_)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        arrays["domain"] = domains[arrays["domain"]]
        return RoundRecords(**arrays)
    except (OSError, SafetensorError, ValueError, KeyError, IndexError, TypeError) as error:
        raise FormatError(f"{path} does not hold recorded rounds ({error}); remove it and record again") from error


def shard_settings(path: Path) -> dict[str, Any]:
    """What a shard was made with; FormatError if it cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            settings: dict[str, Any] = json.loads(_metadata(file, path)["settings"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise FormatError(f"{path} does not hold recorded rounds ({error}); remove it and record again") from error
    return settings


def _metadata(file: Any, path: Path) -> dict[str, str]:
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("version") != str(VERSION):
        raise FormatError(f"{path} has records of version {metadata.get('version')}, expected {VERSION}; record again")
    return metadata


def _check_settings(path: Path, expected: Mapping[str, Any]) -> None:
    found = shard_settings(path)
    different = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
    if different:
        raise CompatibilityError(
            f"{path} was recorded with other settings ({', '.join(different)} differ); name another directory"
        )
