"""Where converted models and remembered hashes live."""

import os
from pathlib import Path


def cache_root() -> Path:
    """$DSPARK_CACHE, or ~/.cache/dspark."""
    return Path(os.environ.get("DSPARK_CACHE") or Path.home() / ".cache" / "dspark")
