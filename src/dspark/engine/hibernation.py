"""Requests without their drafters, while drafting will not pay for long."""

from collections.abc import Callable, Sequence

import numpy as np

from dspark.engine.running import Running
from dspark.scheduling.round import Batch

LEAST, CLEAR = 1.2, 1.3
"""How many times as fast as plain decoding rounds must promise to be for drafters to stay, and to come back. Features
cost 3 to 5 % of all steps, and drafts gain nothing in the half of them that reads prompts."""

LOOK = 32
"""Rounds between one look at what drafting promises and the next."""

NAP = 512
"""Rounds that drafters are away, or stay after they came back, unless the load falls."""

FEWER = 0.75
"""A share of the load to which it must fall for a look before that."""


class Hibernation:
    """Says whether requests should have their drafters: a request that has none decodes as if it never had one.

    That is decided by what drafting would promise if all requests had theirs, at the mean survival: no single draft has
    a say. The mean stays as it is while nobody drafts. So after a nap those who enter have drafters, until the next
    look; those who went without keep on, unless drafting clearly pays again.
    """

    def __init__(self, promise: Callable[[Batch], float | None], gamma: int) -> None:
        self.asleep = self.rouses = False
        self._promise, self._gamma = promise, gamma
        self._left, self._load = LOOK, 0

    def look(self, seated: Sequence[Running]) -> bool:
        """Called before each step of the requests `seated`; whether `asleep` has changed.

        If so, all must be put to sleep, or those who wait be woken; as long as it `rouses`, those with a seat, too.
        """
        if not seated:
            return False
        self._left -= 1
        before, fewer = self.asleep, self.asleep and len(seated) < FEWER * self._load
        if fewer or (self._left <= 0 and not self.asleep):
            self._decide(seated)
        elif self._left <= 0:
            self.asleep, self._left = False, 2 * LOOK
        return self.asleep != before

    def _decide(self, seated: Sequence[Running]) -> None:
        promise = self._promised(seated)
        self._load = len(seated)
        if promise is None or promise >= CLEAR:
            self._left = NAP if self.asleep else LOOK
            self.asleep, self.rouses = False, True
        elif not self.asleep:
            self.asleep = promise < LEAST
            self.rouses = self.rouses and not self.asleep
            self._left = NAP if self.asleep else LOOK

    def _promised(self, seated: Sequence[Running]) -> float | None:
        """What rounds of `seated` promise if all of them have their drafters; None if nobody can tell."""
        caps = np.array([0 if one.chosen.drafter is None else self._gamma for one in seated])
        if not caps.any():
            return None
        keys = np.array([one.key for one in seated])
        return self._promise(Batch(keys, self._gamma, float(np.mean([one.computed for one in seated])), caps))
