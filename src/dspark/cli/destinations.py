"""Whether results can be written, asked before the hours that they take."""

import tempfile
from pathlib import Path

from dspark.errors import ConfigError


def check_file(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written; None, an option that was not given, passes.

    Raises ConfigError that names the option of the command line which chooses another.
    """
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file in it with {option}")
    if not path.parent.exists():
        raise ConfigError(f"{path} has no directory to be in; create {path.parent}, or name another file with {option}")
    try:
        if path.exists():
            path.open("ab").close()
        _try(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); name another file with {option}") from error


def check_directory(path: Path | None, option: str) -> None:
    """Refuse a directory in which nothing could be written, or that could not be made; otherwise as `check_file`."""
    if path is None:
        return
    try:
        _try(next(place for place in (path, *path.parents) if place.exists()))
    except OSError as error:
        message = f"nothing can be written in {path} ({error.strerror}); name another directory with {option}"
        raise ConfigError(message) from error


def _try(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory):
        pass
