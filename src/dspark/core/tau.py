"""What a run with a drafter reports about its rounds: tau, acceptance by position, token counts."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

Metric = int | float | list[float]


@dataclass(frozen=True, slots=True)
class Round:
    """One verified block: counts of drafts `drafted`, `verified` and `accepted`, and of tokens `emitted`.

    When a stop token among the drafts ends the text (`ended`), `accepted` counts up to and including it. `emitted`
    is what the user gets: it may be less than accepted + 1 in the last round.
    """

    drafted: int
    verified: int
    accepted: int
    emitted: int
    ended: bool = False

    @property
    def acceptance_length(self) -> int:
        """DeepSpec's: accepted drafts + 1, but accepted drafts alone when an accepted stop token ended the text."""
        return self.accepted if self.ended else self.accepted + 1

    @property
    def judged(self) -> int:
        """Positions that were up for acceptance; those after an accepted stop token were not."""
        return self.accepted if self.ended else self.verified


@dataclass(slots=True)
class RoundTally:
    """The rounds of one request, or of many (micro-average).

    The last round is not clipped to the token limit, as in DeepSpec. Neither the token nor the forward of the prompt
    belongs to a round: `first_tokens` counts those tokens apart.
    """

    entries: Counter[Round] = field(default_factory=Counter)
    first_tokens: int = 0

    def add(self, entry: Round) -> None:
        """Count one round."""
        self.entries[entry] += 1

    @classmethod
    def merged(cls, tallies: Iterable[Self]) -> Self:
        """The tally of all rounds of `tallies`."""
        total = cls()
        for tally in tallies:
            total.entries.update(tally.entries)
            total.first_tokens += tally.first_tokens
        return total

    @property
    def rounds(self) -> int:
        """Number of target forwards after the prompt's."""
        return self.entries.total()

    @property
    def acceptance_length(self) -> int:
        """Summed acceptance lengths: tau's numerator."""
        return self._total(lambda entry: entry.acceptance_length)

    @property
    def output_tokens(self) -> int:
        """Tokens that the user gets, first tokens included."""
        return self.first_tokens + self._total(lambda entry: entry.emitted)

    @property
    def tau(self) -> float:
        """Mean acceptance length (DeepSpec's micro-average); 0 without rounds."""
        return _ratio(self.acceptance_length, self.rounds)

    @property
    def tokens_per_target_forward(self) -> float:
        """Tokens that the user gets per round: nothing counted that is cut off; 0 without rounds."""
        return _ratio(self._total(lambda entry: entry.emitted), self.rounds)

    def acceptance_by_position(self) -> list[float]:
        """Share of the rounds that verified position k in which it, and so all before it, survived."""
        return self._rates(lambda entry, k: entry.judged > k)

    def conditional_acceptance_by_position(self) -> list[float]:
        """Share of the rounds that verified position k, and accepted all before it, in which it survived."""
        return self._rates(lambda entry, k: entry.judged > k and entry.accepted >= k)

    def metrics(self) -> dict[str, Metric]:
        """The counts and rates that every run reports under `metrics`; the loop adds the times."""
        return {
            "tau": self.tau,
            "tokens_per_target_forward": self.tokens_per_target_forward,
            "rounds": self.rounds,
            "drafted_tokens": self._total(lambda entry: entry.drafted),
            "verified_tokens": self._total(lambda entry: entry.verified),
            "accepted_tokens": self._total(lambda entry: entry.accepted),
            "acceptance_by_position": self.acceptance_by_position(),
            "conditional_acceptance_by_position": self.conditional_acceptance_by_position(),
            "output_tokens": self.output_tokens,
        }

    def _total(self, count: Callable[[Round], int]) -> int:
        return sum(times * count(entry) for entry, times in self.entries.items())

    def _rates(self, eligible: Callable[[Round, int], bool]) -> list[float]:
        depth = max((entry.judged for entry in self.entries), default=0)
        return [self._rate(k, eligible) for k in range(depth)]

    def _rate(self, k: int, eligible: Callable[[Round, int], bool]) -> float:
        return _ratio(self._total(lambda entry: entry.accepted > k), self._total(lambda entry: eligible(entry, k)))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
