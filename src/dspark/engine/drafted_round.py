"""One round of many requests on its way: who drafts from where, what was proposed, how much of it is verified.

Shapes: B requests of the round, G drafted slots, V vocabulary, d width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dspark.calibration.signals import Floats, SurvivalModel
from dspark.engine.abilities import knows_likeliest
from dspark.engine.batch_sampler import BatchRound
from dspark.engine.confidences import SlotSignals, conditional, reads_laws, recorded
from dspark.engine.ragged import begin_each
from dspark.engine.running import Running
from dspark.types import DraftBlocks, Drafter, as_ids


@dataclass(slots=True)
class Member:
    """One request in the round: the drafts that its drafter may make, or the `copies` that stand in their place."""

    running: Running
    copies: list[int] = field(default_factory=list)
    cap: int = field(init=False)
    """Drafts that the scheduler may ask for. Copies are not its business: none of them costs any drafting."""

    def __post_init__(self) -> None:
        self.cap = 0 if self.copies or self.running.strategy.drafter is None else self.running.request.room

    @property
    def model(self) -> SurvivalModel | None:
        """What was fitted for drafts that are drawn as its are."""
        return self.running.strategy.model_of(self.running.request.sampler.params)

    @property
    def drafter(self) -> Drafter | None:
        """Who drafts for it in this round, if the round drafts."""
        return self.running.strategy.drafter if self.cap else None


@dataclass(slots=True)
class Group:
    """Members whose drafts come from the same place, and their draws."""

    drafter: Drafter | None
    members: list[Member]
    sampler: BatchRound = field(init=False)

    def __post_init__(self) -> None:
        requests = [member.running.request for member in self.members]
        starts = [len(request.output.token_ids) for request in requests]
        most = [len(member.copies) or member.cap for member in self.members]
        self.sampler = BatchRound([request.sampler for request in requests], starts, most)
        for row, member in enumerate(self.members):
            if member.copies:
                self.sampler.copy(row, member.copies)

    def draft(self, gamma: int, width: int) -> Floats:
        """Propose blocks of up to `width` drafts.

        Returns their conditional confidences [B, gamma], 0 beyond them and for copies.
        """
        confidences = np.zeros((len(self.members), gamma), dtype=np.float32)
        if self.drafter is not None:
            self._draft(self.drafter, min(self.drafter.info.gamma, width), confidences)
        return confidences

    def _draft(self, drafter: Drafter, width: int, confidences: Floats) -> None:
        requests = [member.running.request for member in self.members]
        caches = [member.running.draft_cache for member in self.members]
        assert all(cache is not None for cache in caches)
        slots = min(width, max(member.cap for member in self.members))
        # Blocks as wide as was planned in any case: their slots attend to each other, so that q would depend on who
        # else is near the end of the text.
        anchors, known = [request.anchor for request in requests], [cache for cache in caches if cache is not None]
        blocks = begin_each(drafter, anchors, known, width)
        models = [member.model for member in self.members]
        signals = SlotSignals(any(map(reads_laws, models)))
        if not self._take_likeliest(blocks, anchors, slots, signals):
            self._draw(blocks, anchors, slots, signals)
        for cache, request in zip(caches, requests, strict=True):
            assert cache is not None
            cache.rollback(request.length - 1)
        self._fill(confidences[:, :slots], signals, models, drafter)

    def _take_likeliest(self, blocks: DraftBlocks, anchors: Sequence[int], slots: int, signals: SlotSignals) -> bool:
        """Draft all slots in one go, where nobody draws and `blocks` can. Returns whether that was so."""
        if not knows_likeliest(blocks) or not self.sampler.drafts_best:
            return False
        drafts = blocks.likeliest(as_ids(anchors), slots)
        if drafts is None:
            return False
        self.sampler.take(drafts.tokens.tolist())
        signals.add_all(drafts)
        return True

    def _draw(self, blocks: DraftBlocks, anchors: Sequence[int], slots: int, signals: SlotSignals) -> None:
        """Draft slot by slot; a request that has all its drafts stays behind its last one."""
        previous = list(anchors)
        for _ in range(slots):
            logits, confidence = blocks.step(as_ids(previous))
            signals.add(logits, confidence)
            drawn = self.sampler.draft(logits)
            previous = [before if token is None else token for before, token in zip(previous, drawn, strict=True)]

    def _fill(
        self,
        confidences: Floats,
        signals: SlotSignals,
        models: Sequence[SurvivalModel | None],
        drafter: Drafter,
    ) -> None:
        """Write the chances of each member by its own model and sampling; nothing beyond the drafts that it has."""
        slots = confidences.shape[1]
        histories = np.array([member.running.history.value for member in self.members])
        collected = signals.signals(histories)
        samplings = [member.running.request.sampler.params for member in self.members]
        expected = [recorded(drafter.info.acceptance, params) for params in samplings]
        for model, constant in dict.fromkeys(zip(models, expected, strict=True)):
            rows = [row for row, own in enumerate(zip(models, expected, strict=True)) if own == (model, constant)]
            chances = conditional(model, collected, slots, constant)
            confidences[rows] = chances[rows] if len(chances) == len(models) else chances
        drafted = np.array([len(drafts) for drafts in self.sampler.drafts])
        confidences[np.arange(slots) >= drafted[:, None]] = 0.0


def grouped(decodes: Iterable[Running], room: int) -> list[Group]:
    """Members by who drafts for them, in the order in which each first appears; at most `room` copies in all."""
    by_source: dict[int, list[Member]] = {}
    for running in decodes:
        copies = running.request.copies()[:room]
        room -= len(copies)
        member = Member(running, copies)
        by_source.setdefault(id(member.drafter), []).append(member)
    return [Group(own[0].drafter, own) for own in by_source.values()]
