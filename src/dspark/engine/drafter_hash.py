"""A drafter's identity, as records, calibrations and profiles name it."""

from hashlib import sha256
from pathlib import Path

from dspark.targets.weights_hash import remembered_hash


def drafter_hash(directory: Path) -> str:
    """sha256 of the weight files in `directory`, remembered while they stay the same."""
    files = sorted(directory.glob("*.safetensors"))

    def compute() -> str:
        digest = sha256()
        for path in files:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    return remembered_hash(files, compute)
