"""How drafters are built and taught: one file per algorithm, and a registry."""
