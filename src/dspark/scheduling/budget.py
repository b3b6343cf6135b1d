"""How many drafts a round should verify: expected tokens over the time of the whole round."""

from dataclasses import dataclass

import numpy as np

from dspark.scheduling.admission import descending
from dspark.scheduling.arrays import Floats
from dspark.scheduling.cost import RoundSeconds
from dspark.scheduling.round import Batch

ROUNDING = 1e-9
"""Throughputs that differ by less (relative) are not told apart by a bound: sums of 1e6 gains are good to 1e-10."""


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """Expected tokens per second: `plain` without drafting, `drafted` [n + 1] with 0 ... n candidates verified.

    Candidates bring `gains`, largest first; floors are verified beside them. `full` is the throughput of
    verifying every draft, those of value 0 too (no more than it, if not all candidates were looked at).
    """

    gains: Floats
    plain: float
    drafted: Floats
    full: float

    def budget(self, least_gain: float = 0.0) -> int | None:
        """Candidates to admit beside the floors for the highest peak; None if it does not beat `full` by that share."""
        best = highest_peak(self.drafted)
        return best if self.drafted[best] * (1 - least_gain) > self.full else None


def prospects(batch: Batch, value: Floats, seconds: RoundSeconds, most: int | None = None) -> Prospects:
    """Theta for candidates worth `value` [gamma, B], in the order of `admit`; of the best `most` only."""
    optional = batch.optional(value)
    expected = batch.anchor_value + (float((value - optional).sum()) if batch.floor_tokens else 0.0)
    time = seconds.drafted[batch.floor_tokens :]
    gains = descending(optional, most)
    drafted = throughputs(gains, expected, time)
    full = float(drafted[-1] * time[len(drafted) - 1] / time[-1])
    return Prospects(gains, batch.anchor_value / seconds.plain, drafted, full)


def search(batch: Batch, value: Floats, seconds: RoundSeconds, look: int, least_gain: float = 0.0) -> Prospects:
    """Prospects that hold the highest peak of all, from the best `look` candidates only if that can be proven of them.

    It is where no later budget could come up to the peak, nor verifying everything within `least_gain` (relative) of
    it, even if all later candidates were worth as much as the last one looked at.
    """
    near = prospects(batch, value, seconds, look)
    time = seconds.drafted[batch.floor_tokens :]
    if len(near.gains) < look or len(near.drafted) == len(time):
        return near
    beyond = _bounds_beyond(near, time)
    peak = near.drafted[highest_peak(near.drafted)] * (1 - ROUNDING)
    proven = beyond.max() < peak and beyond[-1] < peak * (1 - least_gain)
    return near if proven else prospects(batch, value, seconds)


def _bounds_beyond(near: Prospects, seconds: Floats) -> Floats:
    """Upper bounds on Theta at every budget beyond those of `near`, up to the last of `seconds`."""
    known = len(near.gains)
    more, gain = len(seconds) - 1 - known, float(near.gains[-1])
    bounds = np.arange(gain, (more + 0.5) * gain, gain)
    bounds += near.drafted[-1] * seconds[known]
    bounds /= seconds[known + 1 :]
    return bounds


def throughputs(gains: Floats, expected: float, seconds: Floats) -> Floats:
    """Theta_k = (expected + the first k gains) / seconds[k], for as many k as both arrays allow."""
    tokens = np.empty(min(len(gains) + 1, len(seconds)))
    tokens[0] = expected
    tokens[1:] = gains[: len(tokens) - 1]
    np.add.accumulate(tokens, out=tokens)
    tokens /= seconds[: len(tokens)]
    return tokens


def first_peak(theta: Floats) -> int:
    """Algorithm 1: go on while Theta rises strictly. Nothing beyond the first candidate that does not pay matters."""
    stops = theta[1:] <= theta[:-1]
    return int(stops.argmax()) if stops.any() else len(theta) - 1


def highest_peak(theta: Floats) -> int:
    """Section 5.2: the best of all, the first on ties. Only for values that this round's drafts did not make."""
    return int(theta.argmax())
