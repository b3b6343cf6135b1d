"""Full-width rounds and what became of them. Shapes: N rounds, G slots of a block (gamma)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.calibration.signals import Floats, Signals
from dspark.errors import FormatError

Array = npt.NDArray[Any]


_OF_SLOTS = ("confidence", "peak", "entropy", "overlap")
"""Fields [N, G]; the others are [N]."""


class DraftMode(IntEnum):
    """How drafts are chosen: acceptance follows another law for each. Stored by value, so values never change."""

    SAMPLED = 0
    """Drawn from q at the request's temperature."""
    GREEDY = 1
    """The drafter's most likely token; always so at temperature 0."""


@dataclass(frozen=True, slots=True)
class RoundRecords:
    """N rounds in which all gamma drafts were verified, so that no outcome is censored by a schedule.

    `confidence` [N, G] are the head's logits, `peak` [N, G] the log-odds of the largest draft probability and `entropy`
    [N, G] the entropy of the draft law in nats, each NaN throughout where there was none. `overlap` [N, G] is
    sum_v min(p, q), each slot's exact chance of acceptance by token rejection where the slots before it were accepted;
    NaN throughout elsewhere (greedy rounds, block verification). `history` [N] is the `RoundHistory` before the round.
    Of the first `judged` [N] drafts, those before and including an accepted end token, `accepted` [N] survived.
    `position` [N] is the output position of the round's first token, `request` [N] a number that tells prompts apart,
    `domain` [N] a name; `draft_mode` [N] and `temperature` [N] say how drafts were drawn.

    Raises:
        FormatError: fields disagree in length, a count is outside the block, a logit is NaN in part.
    """

    confidence: Floats
    peak: Floats
    entropy: Floats
    overlap: Floats
    history: Floats
    accepted: Array
    judged: Array
    position: Array
    request: Array
    domain: Array
    draft_mode: Array
    temperature: Floats

    def __post_init__(self) -> None:
        shape = self.confidence.shape
        if len(shape) != 2:
            raise FormatError(f"confidence has shape {list(shape)}, expected [rounds, gamma]")
        for name, value in self.arrays().items():
            expected = shape if name in _OF_SLOTS else shape[:1]
            if value.shape != expected:
                raise FormatError(f"{name} has shape {list(value.shape)}, expected {list(expected)} as confidence says")
        if (self.accepted < 0).any() or (self.accepted > self.judged).any() or (self.judged > shape[1]).any():
            raise FormatError(f"accepted and judged drafts must satisfy 0 <= accepted <= judged <= {shape[1]}")
        for name in _OF_SLOTS:
            self._check_logits(name)

    def __len__(self) -> int:
        return len(self.accepted)

    @property
    def gamma(self) -> int:
        """Drafts of a round."""
        return int(self.confidence.shape[1])

    @property
    def signals(self) -> Signals:
        """What was known before the tokens were drawn."""
        confidence, peak, entropy = (
            None if np.isnan(one).all() else one for one in (self.confidence, self.peak, self.entropy)
        )
        return Signals(confidence, peak, self.history, entropy)

    @property
    def labels(self) -> Floats:
        """[N, G] whether drafts 1 ... k all survived: 0 or 1."""
        return (np.arange(self.gamma) < self.accepted[:, None]).astype(np.float64)

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """[N, G] which labels count: slots after an accepted end token were never judged."""
        valid: npt.NDArray[np.bool_] = np.arange(self.gamma) < self.judged[:, None]
        return valid

    def origins(self) -> list[tuple[int, str]]:
        """Request and domain of every round: which prompt it answers, in which set of prompts."""
        return list(zip(self.request.tolist(), self.domain.tolist(), strict=True))

    def arrays(self) -> dict[str, Array]:
        """Every field by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def take(self, rows: Array) -> "RoundRecords":
        """The records at `rows`: indices or a mask [N]."""
        return RoundRecords(**{name: value[rows] for name, value in self.arrays().items()})

    def _check_logits(self, name: str) -> None:
        values = getattr(self, name)
        if np.isinf(values).any() or (np.isnan(values).any() and not np.isnan(values).all()):
            raise FormatError(f"{name} holds NaN or infinite logits beside others; check the drafter that made them")


def concatenate(parts: Sequence[RoundRecords]) -> RoundRecords:
    """All records of `parts`, in order.

    Raises FormatError when there are none, or when gammas differ.
    """
    if not parts:
        raise FormatError("no records; expected rounds of at least one request")
    widths = sorted({part.gamma for part in parts})
    if len(widths) > 1:
        raise FormatError(f"records of gamma {widths[0]} and {widths[-1]} do not mix; calibrate each on its own")
    names = [field.name for field in fields(RoundRecords)]
    return RoundRecords(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def split_by_request(records: RoundRecords, report_share: float = 0.5) -> tuple[RoundRecords, RoundRecords]:
    """(records to fit on, records to report on): no prompt is on both sides, even if it belongs to two domains.

    Requests are dealt out one by one, ordered by domain and then by their number, which is a digest. So a domain of
    n prompts of its own has n `report_share` of them on the report side, give or take one: a small one may be on one
    side only. Raises FormatError when a side stays empty.
    """
    ordered = records.request[np.lexsort((records.request, records.domain))]
    requests, first = np.unique(ordered, return_index=True)
    steps = np.floor((np.arange(len(requests)) + 1) * report_share)
    dealt = requests[np.argsort(first)][np.diff(steps, prepend=0) > 0]
    reported = np.isin(records.request, dealt)
    if reported.all() or not reported.any():
        raise FormatError(
            f"the number of prompts is {len(requests)}, too few to split with report share {report_share}; record more"
        )
    return records.take(~reported), records.take(reported)
