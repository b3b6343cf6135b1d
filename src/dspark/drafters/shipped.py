"""The drafters that come with this package, one directory per target name under `weights/`."""

from pathlib import Path

_WEIGHTS = Path(__file__).parent / "weights"


def shipped_drafter(target_name: str, root: Path = _WEIGHTS) -> Path | None:
    """Directory of the drafter shipped for the target called `target_name`, None if there is none."""
    directory = root / target_name
    return directory if (directory / "config.json").is_file() else None
