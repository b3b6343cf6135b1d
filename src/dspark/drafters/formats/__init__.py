"""Checkpoint packagings: one file each, plus what they share."""
