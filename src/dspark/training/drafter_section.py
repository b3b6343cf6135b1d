"""The part of a recipe that describes the drafter: what all algorithms share. Each adds its own keys."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A mapping of a recipe; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DrafterSection(Section):
    """Drafts of one round, and how weights start: as another drafter's, or from the target.

    `draft_vocab_size` None drafts over the target's whole vocabulary.
    """

    block_size: int = Field(7, ge=1)
    draft_vocab_size: int | None = Field(None, ge=2)
    start_from: Path | None = None
    warm_start: bool = True
