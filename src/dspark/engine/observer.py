"""What a caller may watch of a request's rounds. Its one say: that a round is not trimmed, before the round has drafts.

The law of the text is untouched: what is decided before a round's drafts exist cannot anticipate them (contract 2).
"""

from typing import Protocol, runtime_checkable

from torch import Tensor

from dspark.core.tau import Round


class RoundObserver(Protocol):
    """Told of one request's slots as they are proposed and of its rounds as they are judged, in that order."""

    def full_width(self, position: int) -> bool:
        """Whether the round that begins at output `position` is verified in full, whatever `DecodeOptions.admits` says.

        Asked before the drafter begins, of each round that it drafts and whose gamma drafts the context has room for;
        so neither of copied rounds nor at the end of the context. The answer may depend on earlier rounds only.
        """
        ...

    def slot(self, logits: Tensor, confidence: float | None) -> None:
        """The next slot of the round: raw draft logits [V_draft] and confidence logit, before its token is drawn."""
        ...

    def laws(self, p: Tensor, q: Tensor) -> None:
        """What the round's k drafts are judged by: the target's laws p [k + 1, V] and the draft laws q [k, V].

        Greedy rounds have none. Costs nothing unless it is looked at.
        """
        ...

    def judged(self, entry: Round) -> None:
        """The round is over. When the policy refused its last slot, there is one slot more than drafts."""
        ...


@runtime_checkable
class RoundMemory(Protocol):
    """A drafter's cache that wants to know how its request's rounds went, for confidences of later rounds."""

    def judged(self, entry: Round) -> None:
        """The round is over."""
        ...


class Unobserved:
    """Watches nothing."""

    def full_width(self, position: int) -> bool:
        """Leave the round to the policy."""
        return False

    def slot(self, logits: Tensor, confidence: float | None) -> None:
        """Pass over the slot."""

    def laws(self, p: Tensor, q: Tensor) -> None:
        """Pass over the laws."""

    def judged(self, entry: Round) -> None:
        """Pass over the round."""
