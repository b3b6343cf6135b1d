"""How many drafts a round should verify: expected tokens over the time of the whole round."""

from dataclasses import dataclass

import numpy as np

from dspark.scheduling.admission import descending
from dspark.scheduling.arrays import Floats
from dspark.scheduling.cost import RoundSeconds
from dspark.scheduling.round import Batch


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """Expected tokens per second: `plain` without drafting, `drafted` [n + 1] with 0 ... n candidates verified.

    Candidates bring `gains`, largest first; floors are verified beside them. `full` is the throughput of
    verifying every draft, those of value 0 too (if all candidates were looked at).
    """

    gains: Floats
    plain: float
    drafted: Floats
    full: float


def prospects(batch: Batch, value: Floats, seconds: RoundSeconds, most: int | None = None) -> Prospects:
    """Theta for candidates worth `value` [gamma, B], in the order of `admit`; of the best `most` only."""
    optional = batch.optional(value)
    expected = batch.anchor_value + (float((value - optional).sum()) if batch.floor_tokens else 0.0)
    time = seconds.drafted[batch.floor_tokens :]
    gains = descending(optional, most)
    drafted = throughputs(gains, expected, time)
    full = float(drafted[-1] * time[len(drafted) - 1] / time[-1])
    return Prospects(gains, batch.anchor_value / seconds.plain, drafted, full)


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
