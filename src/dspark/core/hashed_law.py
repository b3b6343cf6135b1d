"""A language with known probabilities, for fakes and tests: nothing to load, nothing to train."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HashedLaw:
    """Logits [V] that look random but follow from `seed` and the last `order` tokens (all of them when None).

    `scale` is their standard deviation; tokens of `impossible` have logit -inf after any text.
    """

    vocab_size: int
    seed: int = 0
    order: int | None = 2
    scale: float = 1.0
    impossible: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    _known: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """Logits [V] of the token after `tokens`; do not write to them."""
        window = tuple(tokens[max(len(tokens) - self.order, 0) :] if self.order is not None else tokens)
        if window not in self._known:
            self._known[window] = self._logits(window)
        return self._known[window]

    def _logits(self, window: tuple[int, ...]) -> Tensor:
        random = np.random.default_rng((self.seed, len(window), *window))
        logits = torch.from_numpy(random.normal(scale=self.scale, size=self.vocab_size)).to(self.dtype)
        logits[list(self.impossible)] = -torch.inf
        return logits
