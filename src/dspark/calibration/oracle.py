"""The survival model that is told the chances, to measure others against. Shapes: N rounds, G slots."""

from dataclasses import dataclass

from dspark.calibration.signals import Floats, Signals, non_increasing


@dataclass(frozen=True, slots=True)
class Oracle:
    """Predicts the survivals [N, G] it was given: an upper bound for every other model where they are exact."""

    true_survival: Floats

    @property
    def gamma(self) -> int:
        """Positions whose chances it knows."""
        return int(self.true_survival.shape[1])

    def survival(self, signals: Signals) -> Floats:
        """a [N, G] as given, non-increasing."""
        return non_increasing(self.true_survival[:, : signals.logits.shape[-1]])
