"""Sequential Temperature Scaling (STS), paper section 3.2.1. Shapes: N, B rounds, G slots."""

from dataclasses import dataclass

import numpy as np

from dspark.calibration.metrics import expected_calibration_error
from dspark.calibration.records import RoundRecords
from dspark.calibration.signals import Floats, Signals, Source, check_slots, cumulative, sigmoid
from dspark.errors import ConfigError

GRID = np.geomspace(1 / 16, 16, 65)
"""Temperatures tried first; they contain 1, which changes nothing."""
REFINEMENTS, REFINED_POINTS = 3, 17
"""How often the neighbourhood of the best temperature is searched more finely, and at how many points."""
MIN_EVENTS = 30
"""Surviving prefixes, and others, that a position needs for a temperature of its own: fewer fit chance."""


@dataclass(frozen=True, slots=True)
class SequentialTemperature:
    """c_k = sigmoid(z_k / T_k) and a_k = c_1 ... c_k, with one temperature T per position of the block.

    The z are logits of `source`, which the temperatures were fitted on.
    """

    temperatures: tuple[float, ...]
    source: Source = Source.CONFIDENCE

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 < t < float("inf") for t in self.temperatures):
            raise ConfigError(f"temperatures are {list(self.temperatures)}; expected a positive number per position")

    @property
    def gamma(self) -> int:
        """Positions that have a temperature."""
        return len(self.temperatures)

    def conditional(self, signals: Signals) -> Floats:
        """Calibrated c [B, G] of the leading G slots; ConfigError where `source` was not collected."""
        logits = signals.of(self.source)
        check_slots(logits.shape[-1], self.gamma)
        return sigmoid(logits / np.array(self.temperatures[: logits.shape[-1]]))

    def survival(self, signals: Signals) -> Floats:
        """a [B, G], non-increasing."""
        return cumulative(self.conditional(signals))


def uncalibrated(gamma: int, source: Source = Source.CONFIDENCE) -> SequentialTemperature:
    """Every logit taken at its word."""
    return SequentialTemperature((1.0,) * gamma, source)


def fit_temperatures(records: RoundRecords) -> SequentialTemperature:
    """Choose T_1, then T_2 with T_1 fixed, and so on, each minimising the ECE of the product up to its position.

    Of equal ECEs the temperature nearest to 1 is taken. A position with fewer than `MIN_EVENTS` survivors or others
    takes the temperature of the position before it, the first one 1.
    """
    logits, labels, valid = records.signals.logits, records.labels, records.valid
    before = np.ones(len(records))
    temperatures, chosen = [], 1.0
    for k in range(records.gamma):
        rows = valid[:, k]
        survived = labels[rows, k].sum()
        if min(survived, rows.sum() - survived) >= MIN_EVENTS:
            chosen = _search(before[rows], logits[rows, k], labels[rows, k])
        before = before * sigmoid(logits[:, k] / chosen)
        temperatures.append(chosen)
    return SequentialTemperature(tuple(temperatures), records.signals.source)


def _search(before: Floats, logits: Floats, labels: Floats) -> float:
    """The T with the lowest ECE of before * sigmoid(logits / T), all [N]: a grid, then finer ones around its best."""

    def cost(temperature: float) -> tuple[float, float]:
        predicted = before * sigmoid(logits / temperature)
        return expected_calibration_error(predicted, labels), abs(np.log(temperature))

    best = min(map(float, GRID), key=cost)
    step = float(GRID[1] / GRID[0])
    for _ in range(REFINEMENTS):
        best = min((best, *map(float, np.geomspace(best / step, best * step, REFINED_POINTS))), key=cost)
        step **= 2 / (REFINED_POINTS - 1)
    return best
