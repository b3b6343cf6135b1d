"""Measured seconds of a round's parts, as a value: every measured point is kept, however jagged the curve."""

import json
import math
from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dspark.errors import CompatibilityError, ConfigError, FormatError
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.cost import RoundSeconds
from dspark.scheduling.trend import Line, rises

FORMAT = "dspark-cost-table-1"

LEAST_SHARE = 0.5
"""Rows of fewer requests than were measured cost no less than this of what was measured, whatever noise says."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """verify_seconds[i][k] of a forward of tokens[k] rows at contexts[i] committed positions per request.

    `draft_seconds[k]` is the time of requests[k] drafting their whole block, `first_draft_seconds[k]` of one slot each
    (as long as the whole block where that is not given), `overhead_seconds` the rest of a round.
    `noise` is twice the standard error of an entry, relative: two that differ by less are not told apart, and a curve
    has a shape only where its range over n measured points exceeds `flat_range(n)` of it. With `padded`, a batch runs
    at the next measured size, as captured graphs do; otherwise times are linear between measured points. Beyond the
    last point, time grows in proportion (rows, requests) or with the last slope (context). `subject` names what was
    measured: hardware, models, versions, settings.

    tokens[k] rows were those of spread[k] requests, and at contexts[i] every further request that as many rows belong
    to takes request_seconds[i]: it has keys and values of its own to be read. Without these two, whose the rows are
    makes no difference.

    Raises:
        ConfigError: a field cannot be, or the curve has holes; the message names it.
    """

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    verify_seconds: tuple[tuple[float, ...], ...]
    requests: tuple[int, ...]
    draft_seconds: tuple[float, ...]
    overhead_seconds: float = 0.0
    noise: float = 0.0
    padded: bool = False
    subject: str = ""
    spread: tuple[int, ...] = ()
    request_seconds: tuple[float, ...] = ()
    first_draft_seconds: tuple[float, ...] = ()
    _verify: Floats = field(init=False, repr=False, compare=False)
    _rise: Floats = field(init=False, repr=False, compare=False)
    _draft: Floats = field(init=False, repr=False, compare=False)
    _first_draft: Floats = field(init=False, repr=False, compare=False)
    _spread: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, grid in (("tokens", self.tokens), ("contexts", self.contexts), ("requests", self.requests)):
            _check_grid(name, grid, least=0 if name == "contexts" else 1)
        if len(self.verify_seconds) != len(self.contexts):
            raise ConfigError(f"verify_seconds has {len(self.verify_seconds)} rows for {len(self.contexts)} contexts")
        for row in self.verify_seconds:
            _check_curve("verify_seconds", row, self.tokens, "tokens")
        drafting = {"draft_seconds": self.draft_seconds, "first_draft_seconds": self.first_drafts}
        for name, curve in drafting.items():
            _check_curve(name, curve, self.requests, "requests", allow_zero=True)
        for name, number in (("overhead_seconds", self.overhead_seconds), ("noise", self.noise)):
            if not 0 <= number < np.inf:
                raise ConfigError(f"{name} is {number}; expected a number of 0 or more")
        self._check_spread()
        every = np.arange(self.tokens[-1] + 1)
        object.__setattr__(self, "_spread", _dense(every, self.tokens, self.spread or self.tokens, self.padded))
        rows = [_dense(every, self.tokens, row, self.padded) for row in self.verify_seconds]
        object.__setattr__(self, "_verify", np.array(rows))
        object.__setattr__(self, "_rise", np.diff(self._verify, axis=0))
        every = np.arange(self.requests[-1] + 1)
        object.__setattr__(self, "_draft", _dense(every, self.requests, self.draft_seconds, self.padded))
        object.__setattr__(self, "_first_draft", _dense(every, self.requests, self.first_drafts, self.padded))

    @property
    def first_drafts(self) -> tuple[float, ...]:
        """Seconds of drafting one slot each: those of whole blocks where nobody measured them."""
        return self.first_draft_seconds or self.draft_seconds

    def _check_spread(self) -> None:
        if bool(self.spread) != bool(self.request_seconds):
            raise ConfigError("spread and request_seconds belong together: give both or none")
        if self.spread and len(self.spread) != len(self.tokens):
            raise ConfigError(f"spread has {len(self.spread)} entries for {len(self.tokens)} sizes")
        if any(not 1 <= requests <= tokens for requests, tokens in zip(self.spread, self.tokens, strict=False)):
            raise ConfigError(
                f"spread is {self.spread}; expected 1 request or more, and a row for each, of {self.tokens}"
            )
        if self.request_seconds:
            _check_curve("request_seconds", self.request_seconds, self.contexts, "contexts", allow_zero=True)

    @classmethod
    def from_steps_per_second(cls, sps: dict[int, float]) -> "CostTable":
        """The paper's cost table: SPS(B) at B tokens, drafting included, so that it costs nothing by itself.

        Raises:
            ConfigError: no steps, or some that are no positive number a second.
        """
        for size, steps in sps.items():
            if not 0 < steps < math.inf:
                raise ConfigError(f"steps per second at {size} tokens are {steps}; expected a positive number")
        tokens = tuple(sorted(sps))
        return cls(tokens, (0,), (tuple(1 / sps[b] for b in tokens),), (1,), (0.0,))

    def verify(self, first: int, last: int, context: float = 0.0, requests: int | None = None) -> Floats:
        """Seconds of verifying `first` ... `last` tokens; of as many `requests` as were measured if None."""
        seconds: Floats = self._at_context(slice(first, last + 1), context)
        end = self.tokens[-1]
        beyond = np.arange(max(first, end + 1), last + 1) / end
        if len(beyond):
            seconds = np.concatenate([seconds, beyond * self._at_context(slice(end, None), context)])
        return seconds if requests is None else self._owned(seconds, first, context, requests)

    def _owned(self, seconds: Floats, first: int, context: float, requests: int) -> Floats:
        """`seconds` from `first` tokens on, corrected for the number of requests that own them."""
        if not self.spread:
            return seconds
        sizes, end = np.arange(first, first + len(seconds)), self.tokens[-1]
        spread = self._spread[np.minimum(sizes, end)] * np.maximum(sizes / end, 1.0)
        further = self._request_seconds(context) * (requests - spread)
        owned: Floats = seconds + np.maximum(further, (LEAST_SHARE - 1) * seconds)
        return owned

    def _request_seconds(self, context: float) -> float:
        """What a further request adds at equal rows: in proportion to the context beyond the last of several."""
        beyond = max(context / self.contexts[-1], 1.0) if len(self.contexts) > 1 else 1.0
        return float(np.interp(context, self.contexts, self.request_seconds)) * beyond

    def _at_context(self, tokens: slice, context: float) -> Floats:
        """The dense curve between or beyond the measured contexts: never cheaper beyond the last."""
        if len(self.contexts) == 1 or context <= self.contexts[0]:
            return self._verify[0, tokens].copy()
        i = min(bisect_left(self.contexts, context), len(self.contexts) - 1)
        share = (context - self.contexts[i - 1]) / (self.contexts[i] - self.contexts[i - 1])
        rise = self._rise[i - 1, tokens]
        seconds: Floats = (np.maximum(rise, 0.0) if share > 1 else rise) * (share - 1)
        seconds += self._verify[i, tokens]
        return seconds

    def draft(self, requests: int, share: float = 1.0) -> float:
        """Seconds in which `requests` draft blocks: of one slot each at `share` 0, whole ones at 1, linear between."""
        if requests == 0:
            return 0.0
        end = min(requests, self.requests[-1])
        seconds = self._first_draft[end] + share * (self._draft[end] - self._first_draft[end])
        return float(seconds * requests / end)

    def round_seconds(
        self, requests: int, drafting: int, most: int, context: float, share: float = 1.0
    ) -> RoundSeconds:
        """Whole rounds that verify 0 ... `most` drafts.

        More requests than were timed drafting together are taken to draft one after another, which they always can: a
        bound, and no ground for trimming. Drafting that takes no time is known at any size. Where points are no clearer
        than their noise, but rise together by more than chance, verification takes what a line through them says.
        """
        verify = self.verify(requests, requests + most, context)
        measured = drafting <= self.requests[-1] or self.draft_seconds[-1] == 0
        resolved = measured and self._resolved(verify, requests, context)
        if measured and not resolved and self._rises(verify, requests, context):
            verify, resolved = self._line(verify, requests), True
        verify = self._owned(verify, requests, context, requests)
        plain = float(verify[0]) + self.overhead_seconds
        verify += self.draft(drafting, share) + self.overhead_seconds
        return RoundSeconds(plain, verify, resolved, measured)

    def _resolved(self, verify: Floats, first: int, context: float) -> bool:
        """Whether `verify`, the seconds from `first` tokens on, has a shape; what was not measured is no evidence."""
        if self.noise == 0:
            return True
        curve = verify if context <= self.contexts[-1] else self._verify[-1, first : first + len(verify)]
        curve = curve[: max(self.tokens[-1] - first + 1, 0)]
        if len(curve) < 2:
            return False
        points = bisect_left(self.tokens, first + len(curve) - 1) - bisect_right(self.tokens, first) + 2
        least = 1 + self.noise * flat_range(points)
        if curve[-1] >= curve[0] * least:  # as most curves have it; extremes cost 4 % of a decision
            return True
        return bool(curve.max() >= curve.min() * least)

    def _rises(self, verify: Floats, first: int, context: float) -> bool:
        """Whether the measured ones of `verify` rise all together; beyond the last context, whether that one's do."""
        sizes = self._measured(first, len(verify))
        known = context <= self.contexts[-1]
        return rises(sizes, verify[sizes - first] if known else self._verify[-1, sizes], self.noise)

    def _line(self, verify: Floats, first: int) -> Floats:
        """`verify` on a straight line through what was measured of it, in proportion beyond."""
        sizes, every = self._measured(first, len(verify)), np.arange(first, first + len(verify))
        measured, inside = verify[sizes - first], np.minimum(every, self.tokens[-1])
        seconds: Floats = np.maximum(Line.through(sizes, measured).at(inside), measured.min()) * (every / inside)
        return seconds

    def _measured(self, first: int, count: int) -> Ints:
        """Measured sizes among `count` from `first` on."""
        sizes = self.tokens[bisect_left(self.tokens, first) : bisect_left(self.tokens, first + count)]
        return np.array(sizes, dtype=np.int64)

    def scaled(self, verify: Floats, draft: float, overhead_seconds: float) -> "CostTable":
        """This table with the verify times of each size multiplied by `verify` [tokens], draft times by `draft`.

        What a further request takes goes with the mean of `verify`.
        """
        rows = tuple(tuple(float(s) for s in np.asarray(row) * verify) for row in self.verify_seconds)
        drafts, first = ([s * draft for s in curve] for curve in (self.draft_seconds, self.first_draft_seconds))
        level = float(np.exp(np.mean(np.log(verify))))
        further = tuple(seconds * level for seconds in self.request_seconds)
        return replace(
            self,
            verify_seconds=rows,
            draft_seconds=tuple(drafts),
            first_draft_seconds=tuple(first),
            overhead_seconds=overhead_seconds,
            request_seconds=further,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` turns into an equal table."""
        fields = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        return {"format": FORMAT, **fields}

    @classmethod
    def from_json(cls, tree: Any) -> "CostTable":
        """The table of a JSON object.

        Raises:
            FormatError: it is no cost table.
            ConfigError: it is one that cannot be.
        """
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            found = tree.get("format") if isinstance(tree, dict) else type(tree).__name__
            raise FormatError(f"format is {found!r}; expected a cost table of format {FORMAT!r}: profile again")
        fields = {key: value for key, value in tree.items() if key != "format"}
        try:
            rows = tuple(tuple(math.nan if s is None else s for s in row) for row in fields.pop("verify_seconds"))
            lists: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
            return cls(verify_seconds=rows, **lists)
        except (KeyError, TypeError) as error:
            raise FormatError(f"the cost table lacks a field or has an unknown one: {error}. Profile again.") from error

    def save(self, path: Path) -> None:
        """Write JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path, subject: str | None = None) -> "CostTable":
        """The table in a file, refused when it was measured on something else than `subject`.

        Raises:
            FormatError: the file is missing or holds no cost table.
            CompatibilityError: it belongs to another machine, model or version.
        """
        try:
            table = cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise FormatError(f"{path} cannot be read as a cost table: {error}. Profile again.") from error
        if subject is not None and table.subject != subject:
            raise CompatibilityError(f"{path} was measured on {table.subject!r}, not on {subject!r}: profile again")
        return table


def flat_range(points: int) -> float:
    """How many times the noise, (largest - smallest) / smallest of `points` equal times stays below, in 95 % of cases.

    Fitted to simulated profiles of 2 to 48 points and 4 to 30 turns under disturbances of six kinds: about 5 % or less,
    9 % in the worst case (benchmarks/noise_gate.py). The noise of a profile is itself known from its few points only.
    """
    return 1.5 + 0.18 * math.log(points)


def _check_grid(name: str, grid: tuple[int, ...], least: int) -> None:
    if not grid or grid[0] < least or any(b <= a for a, b in pairwise(grid)):
        raise ConfigError(f"{name} is {grid}; expected ascending whole numbers from {least} on")


def _check_curve(name: str, curve: tuple[float, ...], grid: tuple[int, ...], of: str, allow_zero: bool = False) -> None:
    if len(curve) != len(grid):
        raise ConfigError(f"{name} has {len(curve)} entries for {len(grid)} {of}: the curve has holes, measure them")
    for size, seconds in zip(grid, curve, strict=True):
        if not (0 < seconds < np.inf or (allow_zero and seconds == 0)):
            raise ConfigError(
                f"{name} at {size} {of} is {seconds}; expected seconds: the curve has a hole, measure it again"
            )


def _dense(every: Any, grid: tuple[int, ...], curve: tuple[float, ...], padded: bool) -> Floats:
    seconds: Floats = np.array(curve)[np.searchsorted(grid, every)] if padded else np.interp(every, grid, curve)
    return seconds
