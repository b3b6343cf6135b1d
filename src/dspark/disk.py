"""What a disk says when it takes no more, with the name of the file: the system and safetensors leave it out."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_WORDS = re.compile(r"\(os error (\d+)\)")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give errors of writing to `path` its name.

    Raises:
        OSError: with `filename`, whatever could not be written, also where safetensors told it in words.
    """
    try:
        yield
    except Exception as error:
        found = system_error(error)
        if found is None:
            raise
        if found.filename is None:
            found.filename = str(path)
        if found is error:
            raise
        raise found from error


def system_error(error: BaseException) -> OSError | None:
    """The refusal of the system that `error` is or tells of in words, as safetensors does; None if it is another."""
    if isinstance(error, OSError):
        return None if error.errno is None else error
    number = _IN_WORDS.search(str(error))
    return None if number is None else OSError(int(number[1]), os.strerror(int(number[1])))
