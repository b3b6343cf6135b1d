"""The draws of one round of many requests at once: for each request what a round of its own gives, to the bit.

Shapes: B requests, k_i drafts of request i that are judged, V vocabulary, V_draft draft vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor

from dspark.engine.sampler import RequestSampler
from dspark.errors import ConfigError
from dspark.types import Verdict


class BatchRound:
    """Draws the drafts of B requests, slot by slot, then judges them all.

    Each request's drafts, accepted drafts and token follow from its own logits and seed alone, whatever else is in the
    batch. `drafts` [B] are lists of target ids.
    """

    def __init__(self, samplers: Sequence[RequestSampler], starts: Sequence[int], max_drafts: Sequence[int]) -> None:
        places = zip(samplers, starts, max_drafts, strict=True)
        self._rounds = [sampler.round(start, most) for sampler, start, most in places]
        self._most = list(max_drafts)

    @property
    def drafts(self) -> list[list[int]]:
        """The drafts so far."""
        return [one.drafts for one in self._rounds]

    def draft(self, logits: Tensor, rows: Sequence[int] | None = None) -> list[int | None]:
        """The next draft of every request from raw draft logits [B, V_draft]; of the requests `rows` alone if given.

        None ends a request's block: all tokens are masked, or it has its `max_drafts`, or copied ones. Whoever got
        None stays with what it has.
        """
        rows = range(len(self._rounds)) if rows is None else rows
        return [self._draft(row, line) for row, line in zip(rows, logits, strict=True)]

    def copy(self, row: int, tokens: Sequence[int]) -> None:
        """Take `tokens`, found without a law, as the drafts of request `row`, which drafts no others."""
        if self._rounds[row].drafts:
            raise ConfigError(f"request {row} of the batch has drafts of its own; copy before drafting")
        self._rounds[row].copy(tokens)
        self._most[row] = 0

    def judge(self, logits: Tensor, lengths: Sequence[int]) -> list[Verdict]:
        """The outcome of each request given the target's raw logits [k_1 + 1 + ... + k_B + 1, V], k = `lengths`.

        Request after request: the rows after 0, ..., k_i drafts. Only its first k_i drafts are judged.
        """
        blocks = logits.split([length + 1 for length in lengths])
        return [one.judge(block) for one, block in zip(self._rounds, blocks, strict=True)]

    def _draft(self, row: int, logits: Tensor) -> int | None:
        one = self._rounds[row]
        token = one.draft(logits) if len(one.drafts) < self._most[row] else None
        if token is None:
            self._most[row] = 0
        return token
