"""Prompt lookup: drafts copied from where the last few tokens stood before. No model, no training, hardly any time.

Code, sums and summaries repeat themselves; there a copy is right more often than a small drafter, and costs nothing.
What is copied depends on committed tokens alone, so copies are judged with a one-hot q and change no law.
Source: Saxena 2023, "Prompt Lookup Decoding".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dspark.errors import ConfigError
from dspark.types import Acceptance

ACCEPTANCE = Acceptance(sampled=(0.50, 0.60, 0.67, 0.72, 0.80), greedy=(0.75, 0.80, 0.85, 0.86, 0.90))
"""Share of copies after 3 repeated tokens that are right, by position: `benchmarks/lookup_acceptance.py`."""


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Draft the `drafts` tokens that followed when the last `match` tokens were last seen in prompt or answer.

    Raises ConfigError when either is below 1.
    """

    drafts: int = 3
    match: int = 3

    def __post_init__(self) -> None:
        for name, value in (("drafts", self.drafts), ("match", self.match)):
            if value < 1:
                raise ConfigError(f"prompt lookup: {name} is {value}; expected 1 token or more")


class LookupIndex:
    """Where each run of `match` tokens of one request was last followed by something."""

    def __init__(self, lookup: PromptLookup, tokens: Iterable[int] = ()) -> None:
        self.lookup = lookup
        self._tokens: list[int] = []
        self._followed: dict[tuple[int, ...], int] = {}
        self.append(tokens)

    def append(self, tokens: Iterable[int]) -> None:
        """Take in committed tokens."""
        match = self.lookup.match
        for token in tokens:
            place = len(self._tokens)
            if place >= match:
                self._followed[tuple(self._tokens[place - match :])] = place
            self._tokens.append(token)

    def propose(self, room: int) -> list[int]:
        """Up to min(`drafts`, `room`) tokens after the latest earlier match; none without one.

        A copy that reaches the end of the text goes on with what it copied: a loop is followed around.
        """
        source = self._followed.get(tuple(self._tokens[-self.lookup.match :]))
        if source is None:
            return []
        known = len(self._tokens)
        drafts: list[int] = []
        for place in range(source, source + min(self.lookup.drafts, room)):
            drafts.append(self._tokens[place] if place < known else drafts[place - known])
        return drafts
