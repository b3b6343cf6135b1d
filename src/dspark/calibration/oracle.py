"""The survival model that knows: the upper bound for every other. Shapes: N rounds, G slots."""

from dataclasses import dataclass

from dspark.calibration.signals import Floats, Signals, non_increasing


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows the chances [N, G] of the rounds that it is asked about: the upper bound for every survival model."""

    true_survival: Floats

    @property
    def gamma(self) -> int:
        """Positions whose chances it knows."""
        return int(self.true_survival.shape[1])

    def survival(self, signals: Signals) -> Floats:
        """The true a [N, G]."""
        return non_increasing(self.true_survival[:, : signals.logits.shape[-1]])
