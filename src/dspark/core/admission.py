"""Which drafts are verified: decided slot by slot, from nothing that could bias the text (contract 2)."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftPrefix:
    """All that may decide whether the next slot j is drafted and verified.

    `tokens` are the drafts before j, `confidences` the confidence logits up to and including slot j (None without a
    confidence head; they read the token before, never the one about to be drawn). The token of slot j does not exist
    yet when the decision falls, so that it cannot be anticipated.
    """

    anchor: int
    tokens: tuple[int, ...]
    confidences: tuple[float | None, ...]


AdmissionPolicy = Callable[[DraftPrefix], bool]
"""Whether the next slot is drafted and verified; the first refusal ends the block."""


def admit_all(prefix: DraftPrefix) -> bool:
    """Verify every draft."""
    return True
