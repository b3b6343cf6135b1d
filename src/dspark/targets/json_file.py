"""Small JSON files beside the weights."""

import json
from pathlib import Path
from typing import Any

from dspark.errors import FormatError


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, empty if the file does not exist; FormatError if it is not a JSON object."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} is not readable JSON ({error}); download it again") from error
    if not isinstance(data, dict):
        raise FormatError(f"{path} holds a {type(data).__name__}, expected a JSON object")
    return data


def write_json(path: Path, data: object) -> None:
    """Write `data` for people to read as well."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
