"""What dspark has on this machine: packages, the cache, the embedded target, the shipped drafter."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("dspark", "torch", "numpy", "safetensors", "tokenizers", "gguf", "transformers", "huggingface_hub")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One converted model in the cache and its size in bytes."""

    name: str
    bytes: int


def versions() -> dict[str, str | None]:
    """Installed versions, Python's first; None for an optional package that is not there."""
    return {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES}


def cache_entries(directory: Path) -> tuple[CacheEntry, ...]:
    """What `directory` holds, one entry a folder or file, in name order."""
    if not directory.is_dir():
        return ()
    return tuple(CacheEntry(path.name, _size(path)) for path in sorted(directory.iterdir()))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _size(path: Path) -> int:
    files = (path,) if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
