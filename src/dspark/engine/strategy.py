"""Where a request's drafts come from: a drafter, its own text, or nowhere."""

from dataclasses import dataclass, replace

from dspark.drafters.dspark import DSpark
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.confidences import ModelOf, uncalibrated
from dspark.types import Drafter


@dataclass(frozen=True, slots=True)
class Strategy:
    """Drafts of `drafter`, and copies where `lookup` finds the text repeated; with neither, plain decoding.

    Copies come first: they need no drafter, and where they are found they are right more often. `model_of` finds the
    survival model that was fitted for the drafter.
    """

    name: str
    drafter: Drafter | None = None
    lookup: PromptLookup | None = None
    model_of: ModelOf = uncalibrated

    @property
    def gamma(self) -> int:
        """Most drafts of a round, from either source."""
        drafted = 0 if self.drafter is None else self.drafter.info.gamma
        return max(drafted, 0 if self.lookup is None else self.lookup.drafts)

    @property
    def undrafted(self) -> "Strategy":
        """The same without a drafter: its requests share prefixes with all that have none."""
        return replace(PLAIN, lookup=self.lookup)

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose outputs the drafter reads."""
        return () if self.drafter is None else self.drafter.info.target_layer_ids


PLAIN = Strategy("none")


def drafter_kind(drafter: Drafter) -> str:
    """What the field calls drafters like this one, in small letters."""
    if isinstance(drafter, DSpark) and drafter.config.is_dflash:
        return "dflash"
    return type(drafter).__name__.lower()
