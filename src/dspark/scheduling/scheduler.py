"""The seam between an engine and the rule that decides how many drafts are verified."""

from typing import Protocol

from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.round import Batch, Outcome, Plan


class Scheduler(Protocol):
    """One round is `plan`, drafting, `lengths`, verification, `observe`.

    `plan` is called before drafting and may use nothing but history; `lengths` may look at this round's confidences,
    but whether it reaches position j of a request must not depend on that request's draft j or later ones (contract 2).
    An overlapped engine may plan one round ahead, before it reports the last one.
    """

    def plan(self, batch: Batch) -> Plan:
        """Whether the round drafts, and its budget."""
        ...

    def promise(self, batch: Batch) -> float | None:
        """How many times as fast as plain decoding rounds of `batch` are expected to be; None if nobody can tell.

        By means of past rounds alone, whoever may be in `batch`. Asking changes nothing.
        """
        ...

    def recheck(self) -> None:
        """Much may have changed since it was last asked: if it rests, it should soon try again."""
        ...

    def lengths(self, plan: Plan, confidences: Floats | None) -> Ints:
        """Drafts [B] to verify, from calibrated conditional confidences c [B, gamma] in [0, 1].

        Raises:
            ConfigError: confidences are missing, misshapen, NaN or outside [0, 1].
        """
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from a verified round."""
        ...
