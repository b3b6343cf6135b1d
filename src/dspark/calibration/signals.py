"""What may be known of a round's slots before their tokens are drawn, and what a survival model makes of it.

Shapes: B rounds, G leading slots of the block, at most gamma. Nothing here depends on the token of the slot itself,
so that a schedule built on it does not anticipate (contract 2).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dspark.errors import ConfigError

Floats = npt.NDArray[np.floating]

LOGIT_LIMIT = 16.0
"""Log-odds beyond it are cut: sigmoid(16) is 1 - 1e-7."""


class Source(StrEnum):
    """What stands for a slot's raw logit: a model that was fitted on one says nothing of the other."""

    CONFIDENCE = "confidence"
    """The confidence head's logit."""
    PEAK = "peak"
    """Log-odds of the largest draft probability, for drafters without a head."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Evidence about B rounds; None where it was not collected.

    `confidence` [B, G] are logits of the confidence head, `peak` [B, G] log-odds of the largest draft probability of
    each slot and `entropy` [B, G] the entropy of its law in nats, `history` [B] the `RoundHistory` of the request's
    earlier rounds.
    """

    confidence: Floats | None = None
    peak: Floats | None = None
    history: Floats | None = None
    entropy: Floats | None = None

    @property
    def source(self) -> Source:
        """The head's logits where they were collected, else the peaks."""
        return Source.PEAK if self.confidence is None else Source.CONFIDENCE

    @property
    def logits(self) -> Floats:
        """Raw logits [B, G] of `source`, errors as in `of`."""
        return self.of(self.source)

    def of(self, source: Source) -> Floats:
        """Raw logits [B, G] of that source alone; ConfigError where it was not collected, and for NaN."""
        return self.peaks if source is Source.PEAK else self.confidences

    @property
    def confidences(self) -> Floats:
        """The head's logits [B, G]; ConfigError where they were not collected, and for NaN."""
        if self.confidence is None:
            raise ConfigError(
                "signals hold no `confidence`; a drafter without a head needs a survival model fitted without it"
            )
        return finite(self.confidence, "confidence")

    @property
    def peaks(self) -> Floats:
        """The peaks [B, G]; ConfigError where they were not collected, and for NaN."""
        if self.peak is None:
            raise ConfigError("signals hold no `peak`; collect it with peak_log_odds")
        return finite(self.peak, "peak")

    @property
    def entropies(self) -> Floats:
        """The entropies [B, G]; ConfigError where they were not collected, and for NaN."""
        if self.entropy is None:
            raise ConfigError("signals hold no `entropy`; collect it with law_entropy")
        return finite(self.entropy, "entropy")

    @property
    def histories(self) -> Floats:
        """The histories [B]; ConfigError where they were not collected, and for NaN."""
        if self.history is None:
            raise ConfigError("signals hold no `history`; collect it with RoundHistory")
        return finite(self.history, "history")


class SurvivalModel(Protocol):
    """Turns signals into a_k, the chance that drafts 1 ... k all survive (paper section 3.2.1)."""

    @property
    def gamma(self) -> int:
        """Most slots that it can judge."""
        ...

    def survival(self, signals: Signals) -> Floats:
        """a [B, G], non-increasing along G; column k reads slots up to k only."""
        ...


class RoundHistory:
    """The share of a request's drafts that passed, of those up to and including the first rejection of each round.

    It forgets, and starts from one of two. Drafts that a schedule trimmed were not tried, so they count neither way:
    a mean accepted length would sink with the width of rounds, and so trim them further.
    """

    def __init__(self, decay: float = 0.9) -> None:
        self._decay = decay
        self._passed, self._tried = 1.0, 2.0

    @property
    def value(self) -> float:
        """The share, in [0, 1], over the rounds before this one."""
        return self._passed / self._tried

    def update(self, accepted: int, judged: int) -> None:
        """Take in a finished round: of `judged` drafts, `accepted` survived. One without drafts tells nothing."""
        if judged:
            self._passed = self._decay * self._passed + accepted
            self._tried = self._decay * self._tried + min(accepted + 1, judged)


def sigmoid(z: Floats) -> Floats:
    """1 / (1 + exp(-z)) without overflow."""
    odds = np.exp(-np.abs(z))
    probability: Floats = np.where(z >= 0, 1, odds) / (1 + odds)
    return probability


def cumulative(c: Floats) -> Floats:
    """Survivals [B, G] of conditional acceptances c [B, G]: the running product, clamped non-increasing."""
    return non_increasing(np.cumprod(c, axis=-1))


def non_increasing(a: Floats) -> Floats:
    """`a` [B, G] cut so that no survival exceeds the one before it: rounding and fitted maps may break the order."""
    clamped: Floats = np.minimum.accumulate(a, axis=-1)
    return clamped


def peak_log_odds(logits: Floats) -> Floats:
    """Log-odds [...] of the largest probability of each row of logits [..., V], cut at +-16.

    A feature of the whole distribution: it is known before a token is drawn from it.
    """
    best = logits.max(axis=-1, keepdims=True)
    others = np.exp((logits - best).astype(np.float64)).sum(axis=-1) - 1
    log_odds: Floats = np.clip(-np.log(np.maximum(others, np.exp(-LOGIT_LIMIT))), -LOGIT_LIMIT, LOGIT_LIMIT)
    return log_odds


def law_entropy(logits: Floats) -> Floats:
    """Entropy [...] in nats of the law of each row of logits [..., V]; like the peak, no token's own probability."""
    shifted = (logits - logits.max(axis=-1, keepdims=True)).astype(np.float64)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    masked = np.where(weights > 0, shifted, 0.0)  # a masked token adds nothing
    entropy: Floats = np.log(total) - (weights * masked).sum(axis=-1) / total
    return entropy


def check_slots(slots: int, gamma: int) -> None:
    """Raises ConfigError for more slots than a model of `gamma` positions can judge."""
    if slots > gamma:
        raise ConfigError(f"the signals have {slots} slots, but the survival model knows {gamma} positions")


def finite(values: Floats, name: str) -> Floats:
    """`values`, or a ConfigError that names the field if it holds NaN or infinities."""
    if not np.isfinite(values).all():
        raise ConfigError(f"{name} holds NaN or infinite values; check the drafter's weights and precision")
    return values
