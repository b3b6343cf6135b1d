"""Drafters: the DFlash backbone, DSpark on top of it, Eagle3, and their checkpoint formats."""
