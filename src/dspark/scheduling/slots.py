"""How many slots a round drafts: late drafts that will hardly be verified are not worth drafting."""

from dataclasses import replace

import numpy as np

from dspark.scheduling.arrays import Floats
from dspark.scheduling.budget import highest_peak, prospects
from dspark.scheduling.cost import RoundSeconds
from dspark.scheduling.known_rounds import KnownRounds
from dspark.scheduling.round import Batch

LOOK_EVERY = 32
"""Rounds between one look at all widths and the next."""

OTHER_LOAD = 0.25
"""A share by which the number of drafting requests must change for a look before that."""

SLACK = 0.01
"""Blocks are as wide as comes that close to the best, over the number of requests: late drafts of a confident request
are worth more than the mean says, which many requests in a round come near to."""


class SlotChoice:
    """The width of blocks with the most expected tokens per second, the widest of those that come close to it.

    One pass of the drafter makes all slots of a block, and costs the more the more they are. Decided before drafting,
    from the mean of rounds that are known by then: no draft of the round has a say, and no single round, as a width
    stays for a while. Prompts beside the round come and go, and have no say either.
    """

    def __init__(self, rounds: KnownRounds) -> None:
        self._rounds = rounds
        self._width: int | None = None
        self._requests = self._gamma = self._left = 0

    def narrowed(self, batch: Batch, survival: Floats, passed: int = 1) -> Batch:
        """`batch` with blocks of the best width, where a request's survivals are `survival` [gamma] in the mean.

        `passed` rounds have gone by since the question before.
        """
        self._left -= passed
        changed = abs(batch.drafting - self._requests) > OTHER_LOAD * self._requests or batch.gamma != self._gamma
        if changed or self._left <= 0:
            rates = self._rates(replace(batch, beside=0), survival)
            enough = (1 - SLACK / batch.requests) * max(rates.values(), default=0.0)
            self._width = max((width for width, rate in rates.items() if rate >= enough), default=None)
            self._requests, self._gamma, self._left = batch.drafting, batch.gamma, LOOK_EVERY
        return batch if self._width is None else batch.narrowed(max(self._width, batch.highest_floor))

    def promise(self, batch: Batch, survival: Floats) -> float | None:
        """How many times as fast as plain decoding the best width is; None where nobody timed so many requests."""
        rates = self._rates(batch, survival)
        return max(rates.values()) * self._rounds.seconds(batch).plain / batch.anchor_value if rates else None

    def _rates(self, batch: Batch, survival: Floats) -> dict[int, float]:
        """Tokens per second of the best budget at each width; empty where nobody timed so many requests drafting."""
        every = np.repeat(survival[:, None], batch.requests, axis=1)
        rates = dict[int, float]()
        self._rounds.forget()  # widths are to be compared by what rounds cost at one time
        whole = self._rounds.seconds(batch)
        for width in range(batch.width, max(batch.highest_floor, 1) - 1, -1) if whole.measured else ():
            narrowed = batch.narrowed(width)
            seconds = self._rounds.seconds(narrowed)
            seconds = seconds if whole.resolved else _flat(seconds, whole)
            drafted = prospects(narrowed, narrowed.value(every), seconds).drafted
            rates[width] = float(drafted[highest_peak(drafted)])
        return rates


def _flat(seconds: RoundSeconds, whole: RoundSeconds) -> RoundSeconds:
    """`seconds` if verifying takes the same at any length, the mean of `whole`: its shape is no clearer than noise."""
    more = float(whole.drafted.mean() - whole.drafted[0])
    return replace(seconds, drafted=np.full(len(seconds.drafted), seconds.drafted[0] + more))
