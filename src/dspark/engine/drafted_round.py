"""One round of many requests on its way: who drafts from where, what was proposed, how much of it is verified.

Shapes: B requests of the round, G drafted slots, V vocabulary, d width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dspark.calibration.signals import Floats, SurvivalModel
from dspark.drafters.prompt_lookup import ACCEPTANCE
from dspark.engine.batch_sampler import BatchRound
from dspark.engine.confidences import SlotSignals, conditional, reads_laws, recorded
from dspark.engine.ragged import begin_each
from dspark.engine.running import Running
from dspark.types import Drafter, as_ids


@dataclass(slots=True)
class Member:
    """One request in the round: how many drafts it may have, and the copies it has instead of a drafter's."""

    running: Running
    cap: int
    copies: list[int]

    @classmethod
    def of(cls, running: Running) -> "Member":
        """The request as it stands, all of which follows from its committed tokens."""
        copies = running.request.copies()
        return cls(running, len(copies) if copies else running.request.room, copies)

    @property
    def model(self) -> SurvivalModel | None:
        """What was fitted for drafts that are drawn as its are."""
        return self.running.strategy.model_of(self.running.request.sampler.params)

    @property
    def drafter(self) -> Drafter | None:
        """Who drafts for it in this round."""
        return None if self.copies or self.cap == 0 else self.running.strategy.drafter


@dataclass(slots=True)
class Group:
    """Members whose drafts come from the same place, and their draws."""

    drafter: Drafter | None
    members: list[Member]
    sampler: BatchRound = field(init=False)

    def __post_init__(self) -> None:
        requests = [member.running.request for member in self.members]
        starts = [len(request.output.token_ids) for request in requests]
        caps = [member.cap for member in self.members]
        self.sampler = BatchRound([request.sampler for request in requests], starts, caps)

    def draft(self, gamma: int) -> Floats:
        """Propose blocks of up to `gamma` drafts; returns their conditional confidences [B, gamma]."""
        confidences = np.zeros((len(self.members), gamma), dtype=np.float32)
        if self.drafter is None:
            self._copy(confidences)
        else:
            self._draft(self.drafter, confidences)
        return confidences

    def _copy(self, confidences: Floats) -> None:
        for row, member in enumerate(self.members):
            if member.copies:
                self.sampler.copy(row, member.copies)
                chances = recorded(ACCEPTANCE, member.running.request.sampler.params)
                slots = len(member.copies)
                confidences[row, :slots] = conditional(None, None, slots, chances)[0]

    def _draft(self, drafter: Drafter, confidences: Floats) -> None:
        requests = [member.running.request for member in self.members]
        caches = [member.running.draft_cache for member in self.members]
        assert all(cache is not None for cache in caches)
        slots = min(confidences.shape[1], drafter.info.gamma, max(member.cap for member in self.members))
        blocks = begin_each(drafter, [r.anchor for r in requests], [c for c in caches if c is not None], slots)
        models = [member.model for member in self.members]
        signals = SlotSignals(any(map(reads_laws, models)))
        previous = [request.anchor for request in requests]
        for _ in range(slots):
            logits, confidence = blocks.step(as_ids(previous))
            signals.add(logits, confidence)
            drawn = self.sampler.draft(logits)
            previous = [before if token is None else token for before, token in zip(previous, drawn, strict=True)]
        for cache, request in zip(caches, requests, strict=True):
            assert cache is not None
            cache.rollback(request.length - 1)
        self._fill(confidences[:, :slots], signals, models, drafter)

    def _fill(
        self,
        confidences: Floats,
        signals: SlotSignals,
        models: Sequence[SurvivalModel | None],
        drafter: Drafter,
    ) -> None:
        """Write the chances of each member by its own model; nothing beyond the drafts that it has."""
        slots = confidences.shape[1]
        histories = np.array([member.running.history.value for member in self.members])
        collected = signals.signals(histories)
        for model in dict.fromkeys(models):
            rows = [row for row, own in enumerate(models) if own is model]
            params = self.members[rows[0]].running.request.sampler.params
            chances = conditional(model, collected, slots, recorded(drafter.info.acceptance, params))
            confidences[rows] = chances[rows] if len(chances) == len(models) else chances
        drafted = np.array([len(drafts) for drafts in self.sampler.drafts])
        confidences[np.arange(slots) >= drafted[:, None]] = 0.0


def grouped(members: Iterable[Member]) -> list[Group]:
    """Members by who drafts for them, in the order in which each first appears."""
    by_source: dict[int, list[Member]] = {}
    for member in members:
        by_source.setdefault(id(member.drafter), []).append(member)
    return [Group(own[0].drafter, own) for own in by_source.values()]
