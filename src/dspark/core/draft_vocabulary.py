"""Drafters that know only part of the target's vocabulary. Shapes: V target vocabulary, V_draft draft vocabulary."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Maps draft ids to target ids by `token_ids` [V_draft]; None when both vocabularies are the same."""

    size: int
    token_ids: Tensor | None = None

    def token(self, draft_id: int) -> int:
        """Target id of a draft id."""
        return draft_id if self.token_ids is None else int(self.token_ids[draft_id])

    def scatter(self, logits: Tensor) -> Tensor:
        """Draft logits [V_draft] in the target's vocabulary [V]: -inf for tokens that the drafter does not know."""
        if self.token_ids is None:
            return logits
        return logits.new_full((self.size,), -torch.inf).index_copy_(0, self.token_ids.to(logits.device), logits)

    def gather(self, logits: Tensor) -> Tensor:
        """The drafter's part [V_draft] of logits [V]."""
        return logits if self.token_ids is None else logits[self.token_ids.to(logits.device)]

    @property
    def ids(self) -> NDArray[np.int64] | None:
        """`token_ids` for numpy."""
        return None if self.token_ids is None else self.token_ids.numpy(force=True)
