"""The package's version, where every folder may import it."""

__version__ = "0.1.0"
