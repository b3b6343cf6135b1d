"""Forwards of few different sizes: the rows of a step are rounded up, as captured graphs want it.

Shapes: N rows of a forward, d width, m taps.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from dspark.engine.ragged import forward_ragged
from dspark.errors import ConfigError
from dspark.nn.pages import PagedCache
from dspark.types import Cache, Target, TargetOutput


@dataclass(frozen=True, slots=True)
class Tiers:
    """The sizes that forwards may have, ascending; one that is larger than all of them stays as it is.

    Raises:
        ConfigError: no sizes, or not ascending from 1 or more.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(a >= b for a, b in pairwise(self.sizes)):
            raise ConfigError(f"tiers are {self.sizes}; expected ascending numbers of rows, 1 or more")

    @classmethod
    def up_to(cls, most: int) -> "Tiers":
        """1, 2, 4, then multiples of 8 up to 32, of 16 up to 128, of 64 beyond: less than half is padding."""
        sizes = [1, 2, 4, *range(8, 32, 8), *range(32, 128, 16), *range(128, most + 64, 64)]
        return cls(tuple(sizes[: bisect_left(sizes, most) + 1]))

    def fit(self, rows: int) -> int:
        """The least size of `rows` or more."""
        place = bisect_left(self.sizes, rows)
        return rows if place == len(self.sizes) else self.sizes[place]

    @property
    def padding(self) -> int:
        """Most rows that are ever added."""
        return max(b - a - 1 for a, b in pairwise((0, *self.sizes)))


class Padding:
    """Rounds forwards up to `tiers`: further rows belong to `spare`, an empty request whose states nobody reads.

    `spare` has pages of its own for `tiers.padding` positions. Rows do not see each other across requests, so real ones
    are what they are without it.
    """

    def __init__(self, tiers: Tiers, spare: PagedCache) -> None:
        self._tiers, self._spare = tiers, spare

    def forward(
        self, target: Target, token_ids: Tensor, caches: Sequence[Cache], counts: Sequence[int], taps: Sequence[int]
    ) -> TargetOutput:
        """`engine.ragged.forward_ragged`: the states of the N real rows."""
        rows = len(token_ids)
        padding = self._tiers.fit(rows) - rows
        if padding == 0:
            return forward_ragged(target, token_ids, caches, counts, taps)
        padded = token_ids.new_zeros(rows + padding)
        padded[:rows] = token_ids
        output = forward_ragged(target, padded, [*caches, self._spare], [*counts, padding], taps)
        self._spare.rollback(0)
        return TargetOutput(output.last_hidden[:rows], output.features[:rows])
