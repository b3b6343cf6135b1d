"""What a drafter directory says about itself beyond its sizes: layout, the target it was trained for, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dspark.types import Acceptance

HELD_OUT_ACCEPTANCE = "held_out_acceptance"
HELD_OUT_GREEDY_ACCEPTANCE = "held_out_greedy_acceptance"
"""Keys of the training summary that the engine reads, at temperature 1 and 0: how many drafts pay depends on them."""


class Layout(StrEnum):
    """What slot k of a block [anchor at position p, masks] predicts.

    Anchor-first: position p + k + 1, gamma drafts from gamma slots. Fill-in: position p + k, so the anchor's slot
    predicts nothing (z-lab's DFlash, old speculators exports).
    """

    ANCHOR_FIRST = "anchor_first"
    FILL_IN = "fill_in"


@dataclass(frozen=True, slots=True)
class DrafterExtras:
    """The `dspark` key of config.json. Empty strings and None mean: not recorded.

    `target_hash` and `template_hash` are compared on load; `training` is a summary for people.
    """

    name: str = ""
    layout: Layout | None = None
    target_name: str = ""
    target_hash: str = ""
    template_hash: str = ""
    thinking: bool | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def acceptance(self) -> Acceptance:
        """Conditional acceptance by position on held-out answers, empty where the summary has none."""
        return Acceptance(self._rates(HELD_OUT_ACCEPTANCE), self._rates(HELD_OUT_GREEDY_ACCEPTANCE))

    def _rates(self, key: str) -> tuple[float, ...]:
        rates = self.training.get(key)
        if not isinstance(rates, list) or not all(isinstance(r, int | float) and 0 <= r <= 1 for r in rates):
            return ()
        return tuple(float(rate) for rate in rates)
