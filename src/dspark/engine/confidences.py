"""Calibrated chances of the drafts of many requests, from what is known before their tokens are drawn (contract 2).

Shapes: B requests, G drafted slots, V_draft draft vocabulary.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.calibration.logistic import Feature, LogisticSurvival
from dspark.calibration.signals import Floats, Signals, Source, SurvivalModel, sigmoid
from dspark.core.params import is_greedy
from dspark.engine.draft_limit import DEFAULT_ACCEPTANCE
from dspark.nn.compiled.law_signals import law_signals
from dspark.types import NOT_RECORDED, Acceptance, LikeliestDrafts, SamplingParams

ModelOf = Callable[[SamplingParams], SurvivalModel | None]
"""The survival model for requests that are sampled so, None where none was fitted."""


def uncalibrated(params: SamplingParams) -> None:
    """No model for anybody."""
    del params


class SlotSignals:
    """What the slots of one round's blocks say, collected slot by slot."""

    def __init__(self, of_laws: bool) -> None:
        self._of_laws = of_laws
        self._confidences: list[Tensor] = []
        self._peaks: list[Tensor] = []
        self._entropies: list[Tensor] = []

    def add(self, logits: Tensor, confidences: Tensor | None) -> None:
        """The next slot: raw draft logits [B, V_draft] and confidence logits [B], before tokens are drawn."""
        if confidences is not None:
            self._confidences.append(confidences)
        if self._of_laws:
            peak, entropy = law_signals(logits)
            self._peaks.append(peak)
            self._entropies.append(entropy)

    def add_all(self, drafts: LikeliestDrafts) -> None:
        """Every slot at once."""
        if drafts.confidences is not None:
            self._confidences.extend(drafts.confidences.unbind(1))
        if self._of_laws:
            self._peaks.extend(drafts.peaks.unbind(1))
            self._entropies.extend(drafts.entropies.unbind(1))

    def signals(self, history: Floats) -> Signals | None:
        """Everything collected, with the requests' `history` [B]; None if that is nothing."""
        columns = [_columns(kind) for kind in (self._confidences, self._peaks, self._entropies)]
        confidence, peak, entropy = columns
        return None if confidence is None and peak is None else Signals(confidence, peak, history, entropy)


def conditional(model: SurvivalModel | None, signals: Signals | None, slots: int, constant: Sequence[float]) -> Floats:
    """c [B, G]: by `model`; without one by the head's own word; without a head `constant`, a chance a position."""
    if signals is None or (model is None and signals.confidence is None):
        return np.array([[constant[min(k, len(constant) - 1)] for k in range(slots)]])
    if model is None:
        return sigmoid(signals.of(Source.CONFIDENCE))
    survival = model.survival(signals)
    before = np.concatenate([np.ones_like(survival[:, :1]), survival[:, :-1]], axis=1)
    chances: Floats = survival / np.maximum(before, np.finfo(survival.dtype).tiny)
    return np.clip(chances, 0.0, 1.0)


def reads_laws(model: SurvivalModel | None) -> bool:
    """Whether `model` looks at draft laws, beside the confidence head."""
    if isinstance(model, LogisticSurvival):
        return any(feature in model.features for feature in (Feature.PEAK, Feature.WORST, Feature.ENTROPY))
    return getattr(model, "source", None) is Source.PEAK


def recorded(acceptance: Acceptance, params: SamplingParams) -> tuple[float, ...]:
    """Conditional acceptance a position as training measured it: what to expect of drafts unseen."""
    known = acceptance if acceptance is not NOT_RECORDED else Acceptance()
    return (is_greedy(params) and known.greedy) or known.sampled or (DEFAULT_ACCEPTANCE,)


def _columns(slots: Sequence[Tensor]) -> Floats | None:
    return torch.stack(list(slots), dim=1).double().numpy(force=True) if slots else None
