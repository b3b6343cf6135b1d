"""Requests without their drafters, while drafting will not pay for long."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dspark.engine.running import Running
from dspark.scheduling.round import Batch

LEAST, CLEAR = 1.2, 1.3
"""How many times as fast as plain decoding rounds must promise to be for drafters to stay, and to come back. Features
cost 4 to 8 % of all steps, and drafts gain nothing in the half of them that reads prompts."""

LOOK = 32
"""Rounds between one look at what drafting promises and the next."""

NAP = 512
"""Rounds that drafters are away, or stay after they came back, unless the load falls."""

FEW = 8
"""Requests that keep their drafters whatever is promised: the texts of so few say little of the next ones."""

FEWER = 0.75
"""A share of the load to which it must fall for a look before that."""


class Oracle(Protocol):
    """Who knows what drafting promises, as a `RoundPlanner` does."""

    def promise(self, batch: Batch) -> float | None: ...
    def recheck(self) -> None: ...


class Hibernation:
    """Says whether requests should have their drafters: a request that has none decodes as if it never had one.

    That is decided by what drafting would promise if all requests had theirs, at the mean survival: no single draft has
    a say. The mean stays as it is while nobody drafts. So after a nap those who enter have drafters, until the next
    look; those who went without keep on, unless drafting clearly pays again.
    """

    def __init__(self, oracle: Oracle, gamma: int) -> None:
        self.asleep, self.rouses = False, True
        self._oracle, self._gamma = oracle, gamma
        self._left, self._load = LOOK, 0

    def look(self, requests: Sequence[Running]) -> bool:
        """Called before each step of an engine that has `requests`, or waits to; whether `asleep` has changed.

        If so, all must be put to sleep, or those who wait be woken; as long as it `rouses`, those with a seat, too.
        """
        if not requests:
            return False
        self._left -= 1
        before, fewer = self.asleep, self.asleep and len(requests) < FEWER * self._load
        if fewer or (self._left <= 0 and not self.asleep):
            self._decide(requests)
        elif self._left <= 0:
            self.asleep, self._left = False, 2 * LOOK
            self._oracle.recheck()
        return self.asleep != before

    def _decide(self, requests: Sequence[Running]) -> None:
        promise = self._promised(requests)
        self._load = len(requests)
        if promise is not None and promise >= CLEAR:
            self._left = LOOK if self.rouses else NAP
            self.asleep, self.rouses = False, True
        elif len(requests) <= FEW:
            self.asleep, self._left = False, LOOK
        elif not self.asleep:
            self.asleep = promise is not None and promise < LEAST
            self.rouses = self.rouses and not self.asleep
            self._left = NAP if self.asleep else LOOK

    def _promised(self, requests: Sequence[Running]) -> float | None:
        """What rounds of `requests` promise if all of them have their drafters; None if nobody can tell."""
        caps = np.array([0 if one.chosen.drafter is None else self._gamma for one in requests])
        if not caps.any():
            return None
        context = float(np.mean([one.request.length for one in requests]))
        return self._oracle.promise(Batch(np.array([one.key for one in requests]), self._gamma, context, caps))
