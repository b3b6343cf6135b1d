"""What rounds cost on this machine, as a value: a `CostTable`, and the blocks of one request shorter than gamma."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from dspark.errors import ConfigError, DsparkError, FormatError
from dspark.scheduling.arrays import Floats
from dspark.scheduling.cost_table import CostTable

FORMAT = "dspark-round-profile-4"


@dataclass(frozen=True, slots=True)
class RoundProfile:
    """`table` is what schedulers read; `block_seconds[i]` is the time of drafting drafts[i] tokens for one request.

    `verify_noise[context][tokens]` and `block_noise` are relative errors of the single points, `turns` how often each
    was measured. Without a drafter, `drafts` is empty and drafting takes no time.

    Raises:
        ConfigError: lengths that do not belong together, or times that cannot be; the message names the field.
    """

    table: CostTable
    drafts: tuple[int, ...]
    block_seconds: tuple[float, ...]
    verify_noise: tuple[tuple[float, ...], ...]
    block_noise: tuple[float, ...]
    turns: int

    def __post_init__(self) -> None:
        if any(drafts < 1 for drafts in self.drafts) or any(b <= a for a, b in pairwise(self.drafts)):
            raise ConfigError(f"drafts is {self.drafts}; expected ascending whole numbers from 1 on")
        if [len(row) for row in self.verify_noise] != [len(self.table.tokens)] * len(self.table.contexts):
            raise ConfigError("verify_noise does not have one entry for each point of the cost table; profile again")
        for name, values in (("block_seconds", self.block_seconds), ("block_noise", self.block_noise)):
            if len(values) != len(self.drafts) or not all(isfinite(value) and value >= 0 for value in values):
                raise ConfigError(
                    f"{name} is {values}; expected a number of 0 or more for each of drafts {self.drafts}"
                )

    def block(self, drafts: int) -> float:
        """Seconds of drafting `drafts` tokens, linear between measured numbers; ConfigError beyond the last one."""
        if drafts == 0:
            return 0.0
        if not self.drafts or drafts > self.drafts[-1]:
            raise ConfigError(f"{drafts} drafts were not profiled, only {self.drafts}; profile this drafter")
        return float(np.interp(drafts, self.drafts, self.block_seconds))

    def round_seconds(self, most: int, context: float) -> Floats:
        """Whole rounds [most + 1] of 0 ... `most` drafts, all verified, after `context` committed positions."""
        drafting = np.array([self.block(drafts) for drafts in range(most + 1)])
        rounds: Floats = self.undrafted(most, context) + drafting
        return rounds

    def undrafted(self, most: int, context: float) -> Floats:
        """The same rounds [most + 1], but for the time that drafting takes."""
        return self.table.round_seconds(1, 0, most, context).drafted

    def serves(self, requests: int, drafted_together: bool) -> bool:
        """Whether it was measured for so many requests at once, their drafting included if that is done at once."""
        known = self.table.requests[-1] if drafted_together else max(self.table.spread, default=1)
        return known >= requests

    def resolved(self, most: int, context: float) -> bool:
        """Whether verifying 1 ... `most` + 1 tokens differs by more than the measurement's noise."""
        return self.table.round_seconds(1, 1, most, context).resolved

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts rely on (contract 7); `verify_seconds` at the shortest context."""
        table = self.table
        by_context = {
            str(context): _numbered(table.tokens, row)
            for context, row in zip(table.contexts, table.verify_seconds, strict=True)
        }
        noise = {
            str(context): _numbered(table.tokens, row)
            for context, row in zip(table.contexts, self.verify_noise, strict=True)
        }
        return {
            "verify_seconds": by_context[str(table.contexts[0])],
            "draft_seconds": _numbered(table.requests, table.draft_seconds),
            "first_draft_seconds": _numbered(table.requests, table.first_drafts),
            "draft_requests_measured": table.requests[-1],
            "requests_by_tokens": _numbered(table.tokens, table.spread or (1,) * len(table.tokens)),
            "request_seconds_by_context": _numbered(table.contexts, table.request_seconds) if table.spread else {},
            "verify_seconds_by_context": by_context,
            "block_seconds": _numbered(self.drafts, self.block_seconds),
            "overhead_seconds": table.overhead_seconds,
            "noise": table.noise,
            "verify_noise_by_context": noise,
            "block_noise": _numbered(self.drafts, self.block_noise),
            "turns": self.turns,
            "subject": table.subject,
        }

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` turns into an equal profile."""
        fields = {name: value for name, value in asdict(self).items() if name != "table"}
        return {"format": FORMAT, "table": self.table.to_json(), **fields}

    @classmethod
    def from_json(cls, tree: Any) -> "RoundProfile":
        """The profile of a JSON object; FormatError if it is none, or one that cannot be."""
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise FormatError(f"not a profile of format {FORMAT!r}: profile again")
        try:
            return cls(
                table=CostTable.from_json(tree["table"]),
                drafts=tuple(tree["drafts"]),
                block_seconds=tuple(tree["block_seconds"]),
                verify_noise=tuple(tuple(row) for row in tree["verify_noise"]),
                block_noise=tuple(tree["block_noise"]),
                turns=int(tree["turns"]),
            )
        except (KeyError, TypeError, ValueError, DsparkError) as error:
            raise FormatError(f"a profile that cannot be: {error!r}; profile again") from error


def _numbered(grid: Sequence[int], values: Sequence[float]) -> Mapping[str, float]:
    return {str(size): value for size, value in zip(grid, values, strict=True)}
