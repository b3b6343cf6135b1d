"""How much longer one drafter's accepted length is than another's, on the same prompts."""

from dataclasses import dataclass

from dspark.errors import CompatibilityError
from dspark.evaluation.bootstrap import quotient_interval
from dspark.evaluation.evaluate import EvalReport


@dataclass(frozen=True, slots=True)
class Quotient:
    """Mean tau of one evaluation over that of another, with a 95 % interval by bootstrap over pairs of prompts."""

    value: float
    ci95: tuple[float, float]

    @classmethod
    def of(cls, report: EvalReport, other: EvalReport) -> "Quotient":
        """Raises CompatibilityError unless both evaluations are of the same prompts."""
        shapes = [[(one.name, len(one.samples)) for one in each.sets] for each in (report, other)]
        if shapes[0] != shapes[1]:
            raise CompatibilityError(
                f"accepted lengths are compared over the same prompts, found {shapes[0]} and {shapes[1]}"
            )
        samples, others = ([one.samples for one in each.sets] for each in (report, other))
        return cls(report.mean_tau / other.mean_tau, quotient_interval(samples, others))
