"""What a round costs, as schedulers see it."""

from dataclasses import dataclass
from typing import Protocol

from dspark.scheduling.arrays import Floats


@dataclass(frozen=True, slots=True, eq=False)
class RoundSeconds:
    """Seconds of one round: `plain` without drafting, `drafted` [n + 1] with it and 0 ... n drafts verified.

    `resolved` is False when the differences within what was measured of the curve are no larger than noise makes them:
    then there is no ground for trimming. `measured` is False when more requests draft than ever were timed together:
    the draft time is then extrapolated, and nothing is resolved.
    """

    plain: float
    drafted: Floats
    resolved: bool
    measured: bool = True


class CostModel(Protocol):
    """Whole-round time: draft(requests) + verify(tokens, context) + overhead (contract 3)."""

    def round_seconds(
        self, requests: int, drafting: int, most: int, context: float, share: float = 1.0
    ) -> RoundSeconds:
        """A round of `requests`, `drafting` of which draft, for each number of verified drafts from 0 to `most`.

        `share` says how long their blocks are: 0 is one slot, 1 a whole block.
        """
        ...
