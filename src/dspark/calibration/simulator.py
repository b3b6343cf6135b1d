"""Rounds with known chances: what a perfect predictor would score, and what each calibration leaves on the table."""

from dataclasses import dataclass

import numpy as np

from dspark.calibration.records import DraftMode, RoundRecords
from dspark.calibration.signals import Floats, RoundHistory, cumulative, sigmoid


@dataclass(frozen=True, slots=True)
class SimulatedDrafter:
    """A drafter whose conditional acceptances are known, and a head that reports them distorted.

    The true logit of slot k is `ease` + `slope` k + a request's own level + noise of the slot (standard deviations
    `request_spread`, `slot_spread`). The head reports it times `overconfidence[k]`, plus `head_noise`; the peak is the
    true logit plus `peak_noise`, and the entropy says what the peak says.
    """

    ease: float = 1.2
    slope: float = -0.1
    request_spread: float = 0.7
    slot_spread: float = 1.2
    overconfidence: tuple[float, ...] = (1.6, 1.7, 1.8, 1.8, 1.7, 1.6, 1.5)
    head_noise: float = 0.3
    peak_noise: float = 0.8

    @property
    def gamma(self) -> int:
        """Drafts of a round."""
        return len(self.overconfidence)

    def run(self, requests: int, rounds: int, rng: np.random.Generator) -> "Simulation":
        """`rounds` rounds of each of `requests` requests."""
        parts = [self._request(rounds, rng) for _ in range(requests)]
        logits = np.concatenate(parts)
        count, shape = requests * rounds, (requests * rounds, self.gamma)
        accepted = np.cumprod(rng.random(shape) < sigmoid(logits), axis=1).sum(axis=1)
        head = logits * np.array(self.overconfidence) + self.head_noise * rng.standard_normal(shape)
        peak = logits + self.peak_noise * rng.standard_normal(shape)
        records = RoundRecords(
            confidence=head,
            peak=peak,
            entropy=np.log1p(np.exp(-peak)),
            overlap=sigmoid(logits),
            history=np.concatenate([_histories(part, self.gamma) for part in accepted.reshape(requests, rounds)]),
            accepted=accepted,
            judged=np.full(count, self.gamma),
            position=np.tile(np.arange(rounds), requests),
            request=np.repeat(np.arange(requests, dtype=np.uint64), rounds),
            domain=np.full(count, "simulated"),
            draft_mode=np.full(count, DraftMode.SAMPLED, dtype=np.uint8),
            temperature=np.ones(count),
        )
        return Simulation(records, cumulative(sigmoid(logits)))

    def _request(self, rounds: int, rng: np.random.Generator) -> Floats:
        level = self.ease + self.request_spread * rng.standard_normal()
        noise = self.slot_spread * rng.standard_normal((rounds, self.gamma))
        logits: Floats = level + self.slope * np.arange(self.gamma) + noise
        return logits


@dataclass(frozen=True, slots=True)
class Simulation:
    """Records, and the exact survivals [N, G] behind them."""

    records: RoundRecords
    true_survival: Floats


def _histories(accepted: Floats, judged: int) -> Floats:
    history, values = RoundHistory(), []
    for count in accepted.tolist():
        values.append(history.value)
        history.update(count, judged)
    return np.array(values)
