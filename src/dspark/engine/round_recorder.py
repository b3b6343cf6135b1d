"""Turns the watched rounds of one request into records for calibration. Shapes: N rounds, G slots (gamma)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspark.calibration.records import DraftMode, RoundRecords
from dspark.calibration.signals import RoundHistory, law_entropy, peak_log_odds
from dspark.core.params import is_greedy
from dspark.core.tau import Round
from dspark.engine.options import DecodeOptions
from dspark.errors import ConfigError
from dspark.types import SamplingParams


@dataclass(frozen=True, slots=True)
class RequestLabel:
    """What records say of a request beside its rounds: a number that tells prompts apart, a domain, how it samples."""

    request: int
    domain: str
    draft_mode: DraftMode
    temperature: float


FullWidth = Callable[[int], bool]
"""Whether the round that begins at an output position is verified in full, whatever its drafts: `RoundLottery`."""


def every_round(position: int) -> bool:
    """All rounds are verified in full: nothing is trimmed while it is recorded."""
    return True


class RoundRecorder:
    """A `RoundObserver` that has the rounds that `full_width` names verified in full, and keeps those alone.

    A round is named before its drafts exist, and a loop that trims widens it (`RoundObserver.full_width`). Those that
    merely happen to be verified in full only enter the history: a schedule chose them by their confidences, and what
    it did not choose was never seen. A loop that asks for rounds that it then verifies in part would leave just such
    a choice behind, so this raises ConfigError. At the end of the context, where gamma drafts have no room, loops do
    not ask.
    """

    def __init__(self, label: RequestLabel, gamma: int, full_width: FullWidth) -> None:
        self._label, self._gamma, self._full_width = label, gamma, full_width
        self._history = RoundHistory()
        self._position: int | None = None  # of the round at hand, if it was named
        self._slots: list[tuple[float, float, float]] = []
        self._overlap = [float("nan")] * gamma
        self._rows: list[tuple[list[tuple[float, float, float]], list[float], float, int, int, int]] = []

    def full_width(self, position: int) -> bool:
        """Whether the round that begins at output `position` is named."""
        named = self._full_width(position)
        self._position = position if named else None
        return named

    def slot(self, logits: Tensor, confidence: float | None) -> None:
        """Take in a slot's confidence and the shape of its law, never the token drawn from it."""
        law = logits.float().numpy(force=True)
        head = float("nan") if confidence is None else confidence
        self._slots.append((head, float(peak_log_odds(law)), float(law_entropy(law))))

    def laws(self, p: Tensor, q: Tensor) -> None:
        """Take in each slot's exact chance of acceptance by token rejection: what calibration is measured against."""
        if self._position is not None and len(q) == self._gamma:
            self._overlap = torch.minimum(p[: len(q)], q).sum(-1).tolist()

    def judged(self, entry: Round) -> None:
        """Keep the round if it was named."""
        position, self._position = self._position, None
        slots, self._slots = self._slots, []
        overlap, self._overlap = self._overlap, [float("nan")] * self._gamma
        if position is not None:
            self._check_width(entry, position)
            self._rows.append((slots, overlap, self._history.value, entry.accepted, entry.judged, position))
        self._history.update(entry.accepted, entry.judged)

    def _check_width(self, entry: Round, position: int) -> None:
        if entry.verified != self._gamma:
            raise ConfigError(
                f"the round at output position {position} was to be verified in full, {self._gamma} drafts, but it has "
                f"{entry.verified}; record with a loop that asks full_width, without a cap (max_draft_tokens)"
            )

    def records(self) -> RoundRecords:
        """The rounds so far, none included."""
        slots = [row[0] for row in self._rows]
        count, label = len(slots), self._label
        logits = np.array(slots, dtype=np.float32).reshape(len(slots), self._gamma, 3)
        history, accepted, judged, position = (np.array([row[i] for row in self._rows]) for i in range(2, 6))
        return RoundRecords(
            confidence=logits[..., 0],
            peak=logits[..., 1].astype(np.float16),
            entropy=logits[..., 2].astype(np.float16),
            overlap=np.array([row[1] for row in self._rows], dtype=np.float16).reshape(count, self._gamma),
            history=history.astype(np.float32),
            accepted=accepted,
            judged=judged,
            position=position,
            request=np.full(count, label.request, dtype=np.uint64),
            domain=np.full(count, label.domain),
            draft_mode=np.full(count, label.draft_mode, dtype=np.uint8),
            temperature=np.full(count, label.temperature, dtype=np.float32),
        )


def draft_mode(options: DecodeOptions, params: SamplingParams) -> DraftMode:
    """How drafts are drawn with these options and parameters."""
    return DraftMode.GREEDY if options.greedy_drafts or is_greedy(params) else DraftMode.SAMPLED
