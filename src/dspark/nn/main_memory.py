"""How much memory this process may use."""

from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of main memory, None where the system does not tell."""

    total: int | None
    available: int | None


def main_memory(root: Path = Path("/")) -> Memory:
    """Main memory, cut by a container's limit; what the system says of itself is read below `root`."""
    total, available = (_kibibytes(root / "proc/meminfo", name) for name in ("MemTotal", "MemAvailable"))
    group = root / "sys/fs/cgroup"
    limit = _read(group / "memory.max").strip()
    if limit.isdigit() and total is not None and int(limit) < total:
        total = int(limit)
        left = total - _used(group)
        available = left if available is None else min(left, available)
    return Memory(total, available)


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can be allocated on `device`, None where nobody tells."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else main_memory().available


def _used(group: Path) -> int:
    """Bytes that a container holds, without the files that the system keeps in memory only because nobody needs it."""
    used = _read(group / "memory.current").strip()
    kept = dict(line.split() for line in _read(group / "memory.stat").splitlines()).get("inactive_file", "0")
    return max(0, int(used) - int(kept)) if used.isdigit() else 0


def _kibibytes(path: Path, name: str) -> int | None:
    """The field `name` of a file of lines like `MemTotal: 16 kB`, in bytes."""
    for line in _read(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return int(value.split()[0]) * 1024
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
