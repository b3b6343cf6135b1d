"""Cosines and sines of all positions used so far, computed once instead of at every step."""

import torch
from torch import Tensor

from dspark.nn.rope import Rotary


class RotaryTable:
    """`Rotary.at` of positions 0, 1, ..., grown by doubling."""

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._table = rotary.at(torch.arange(0))

    def reach(self, end: int) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [at least `end`, h] and contiguous, from position 0 on."""
        table = self._table
        if end > len(table[0]):
            table = self._table = self._rotary.at(torch.arange(max(end, 2 * len(table[0]))))
        return table  # not self._table, which another thread may have replaced
