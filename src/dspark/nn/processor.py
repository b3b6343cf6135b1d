"""What this processor can do."""

from pathlib import Path


def processor_flags() -> frozenset[str]:
    """The processor's feature flags as the kernel names them; empty where /proc/cpuinfo does not exist."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
