"""The plotting library, which is optional (the extra `plots`)."""

from typing import Any

from dspark.errors import DependencyError


def load_matplotlib() -> Any:
    """matplotlib's Figure class; DependencyError where it is not installed. Called early, before hours of work."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError("a plot needs matplotlib; pip install 'dspark[plots]'") from error
    return Figure
