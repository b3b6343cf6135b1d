"""What this processor can do."""

from pathlib import Path


def processor_flags() -> frozenset[str]:
    """The processor's feature flags as the kernel names them; empty where /proc/cpuinfo does not exist."""
    return frozenset(_field("flags", "Features").split())


def processor_name() -> str:
    """The processor's model as the kernel names it; empty where /proc/cpuinfo does not say."""
    return _field("model name")


def _field(*names: str) -> str:
    """The first field of /proc/cpuinfo that has one of `names`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""
