"""Models that live on a Hugging Face hub."""

from pathlib import Path

from dspark.errors import DependencyError, FormatError

_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


def download(name: str) -> Path:
    """The local snapshot of the hub model `name` (org/name), fetched if it is not cached yet.

    Raises:
        DependencyError: huggingface_hub is not installed.
        FormatError: the hub does not have it or cannot be reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DependencyError(
            f"{name!r} is no local path; fetching it from a hub needs huggingface_hub: pip install 'dspark[hf]'"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # network, authorisation and naming problems have no common class
        first_line = str(error).strip().partition("\n")[0]
        raise FormatError(f"{name!r} is no local path and could not be fetched from the hub: {first_line}") from error
