"""A target's identity: sha256 over its tensors, remembered so that loading stays fast."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dspark.cache_root import cache_root

_SCHEME = 2
"""Raised whenever a file's hash is computed in another way, so that older records are passed over."""


def weights_hash(weights: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> str:
    """Hexadecimal sha256 over names, dtypes, shapes and bytes, in name order; of the weights in `dtype` if given."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].to(dtype or weights[name].dtype).contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def remembered_hash(files: Sequence[Path], compute: Callable[[], str], cache_dir: Path | None = None) -> str:
    """`compute()`, or its result of an earlier run while path, size and time of all `files` stay the same."""
    record = (cache_dir or cache_root()) / "hashes" / f"{_fingerprint(files)}.json"
    try:
        remembered: str = json.loads(record.read_text(encoding="utf-8"))["weights_hash"]
    except (OSError, ValueError, KeyError, TypeError):
        remembered = compute()
        _remember(record, files, remembered)
    return remembered


def _fingerprint(files: Iterable[Path]) -> str:
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([_SCHEME, facts]).encode()).hexdigest()[:32]


def _remember(record: Path, files: Sequence[Path], value: str) -> None:
    """Best effort: a cache that cannot be written only costs time."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"weights_hash": value, "files": [str(path) for path in files]}) + "\n")
    except OSError:
        return
