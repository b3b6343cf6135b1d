"""The drafters that come with this package, one directory per target name under `weights/`."""

from pathlib import Path

NO_DRAFTER = "none"

_WEIGHTS = Path(__file__).parent / "weights"


def shipped_drafter(target_name: str, root: Path = _WEIGHTS) -> Path | None:
    """Directory of the drafter shipped for the target called `target_name`, None if there is none."""
    directory = root / target_name
    return directory if (directory / "config.json").is_file() else None


def drafter_directory(name: Path | str | None, target_name: str) -> Path | None:
    """Directory `name`; the shipped drafter's for None; nothing for `none`, or where none is shipped."""
    if name is None:
        return shipped_drafter(target_name)
    return None if name == NO_DRAFTER else Path(name)
