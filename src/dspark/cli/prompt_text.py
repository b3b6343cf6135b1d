"""Text that the user gives: from an argument, a file or stdin, and valid in UTF-8 whatever the shell passes on."""

import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from dspark.errors import ConfigError


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from exactly one of its three sources.

    Raises:
        ConfigError: none or several are given, or the prompt is empty or not UTF-8.
    """
    if (argument is None) == (file is None):
        raise ConfigError("Give the prompt once: as an argument, as `-` for stdin, or with --prompt-file.")
    try:
        text = file.read_text(encoding="utf-8") if file else sys.stdin.read() if argument == "-" else argument or ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"The prompt is not UTF-8 text: {error}. Save it as UTF-8.") from error
    if not text.strip():
        raise ConfigError("The prompt is empty. Write something to answer.")
    return checked_text(text, "prompt")


def checked_text(text: str, what: str) -> str:
    """`text` as it is; ConfigError if it holds bytes that are no UTF-8, which Python passes on as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"The {what} is not UTF-8 text: {error.reason} at character {error.start}.") from error
    return text


def tolerant_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines of `lines`, one by one even where some are no UTF-8: those come with surrogates in them."""
    if isinstance(lines, io.TextIOWrapper):
        lines.reconfigure(errors="surrogateescape")
    yield from lines
