"""Lossless speculative decoding with DSpark drafters. The names below are the public ones; folders are private."""

__version__ = "0.1.0"
