"""Which points of the cost curve are measured, and how long that may take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dspark.engine.round_profile import RoundProfile
from dspark.engine.timing_turns import LEAST_TURNS
from dspark.errors import ConfigError
from dspark.types import TargetInfo

SHORT_CONTEXT = 16
"""Committed positions behind the rounds that decoding is planned by: few, as they are filled at every start."""

CONTEXTS = (SHORT_CONTEXT, 256, 1024)
MANY_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Sizes of a verification beyond one request's block."""

SERVED_TOKENS = (*MANY_TOKENS, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""The same for the rows of many requests, up to what they verify in full."""

SERVED_REQUESTS = 64
"""How many requests at once a full profile looks at."""

SERVED_START_TOKENS, SERVED_START_REQUESTS = (16, 32, 128), (1, 8)
"""What a brief profile for many requests looks at beside the sizes of one block and the largest batch."""

SERVED_START_CONTEXT = 256
"""Committed positions behind it: it has one context only, which is to be that of a request at work."""

SERVED_START_SECONDS = 1.0
"""What it should take: less than one request's, since the times of real rounds correct it (`OnlineCost`)."""

SERVED_START_CEILING = 6.0
"""Where a brief profile for many requests would take longer than this, it is left out."""

ROWS_OF_A_STEP = 8
"""A forward of so many rows may take as long as a plain step; longer ones in proportion."""

START_SECONDS = 2.0
"""What profiling at start should take."""

START_CEILING = 4.0
"""Where it would take longer than this, it is left out."""

SETUP_STEPS = 12
"""What comes before the turns, in plain steps: the first, the context, the largest block, an answer's few rounds."""

FULL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """Verification of `tokens` rows at every one of `contexts`, blocks of `drafts`, within about `budget_seconds`.

    `requests` at once draft their blocks of the last of `drafts`, `gamma`; where they are more than one, rows beyond
    one block belong to several (`spread`).
    """

    contexts: tuple[int, ...]
    tokens: tuple[int, ...]
    drafts: tuple[int, ...]
    budget_seconds: float
    requests: tuple[int, ...] = (1,)

    @property
    def gamma(self) -> int:
        """Drafts of a whole block."""
        return self.drafts[-1] if self.drafts else 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Slots of the shortest and of a whole block; none without a drafter."""
        return tuple(sorted({1, self.gamma})) if self.gamma else ()

    @property
    def serving(self) -> bool:
        """Whether it is about many requests."""
        return self.requests[-1] > 1

    @property
    def points(self) -> int:
        """How many pieces of work one turn holds."""
        owned = 2 if self.owners() else 0
        drafting = len(self.requests) * len(self.widths) if self.serving else 0
        return len(self.contexts) * (len(self.tokens) + owned) + len(self.drafts) + drafting

    def spread(self, tokens: int) -> int:
        """Requests that `tokens` rows belong to: one for a block, beyond it as many as half-full blocks fill."""
        if not self.serving or tokens <= self.gamma + 1:
            return 1
        return min(max(round(2 * tokens / (self.gamma + 2)), self._fewest(tokens)), self.requests[-1])

    def owners(self) -> tuple[int, int] | None:
        """As few and as many requests as can own as many rows as there are requests; None where that is one answer."""
        many = self.requests[-1]
        return (self._fewest(many), many) if self._fewest(many) < many else None

    def _fewest(self, tokens: int) -> int:
        return -(-tokens // (self.gamma + 1))

    @property
    def steps(self) -> float:
        """About how long one turn takes, in plain steps."""
        rows = [*self.tokens, *(self.requests[-1] for _ in self.owners() or ())]
        drafting = len(self.widths) * _steps(self.requests) if self.serving else 0.0
        return len(self.contexts) * _steps(rows) + len(self.drafts) + drafting

    def covered_by(self, profile: RoundProfile) -> bool:
        """Whether `profile` has all of these points."""
        table = profile.table
        if self.owners() and not table.spread:
            return False  # its rows are all of one request
        drafting = self.requests if table.requests[-1] > 1 else ()  # a drafter that takes one at a time is timed so
        pairs = (
            (self.contexts, table.contexts),
            (self.tokens, table.tokens),
            (self.drafts, profile.drafts),
            (drafting, table.requests),
        )
        return all(set(wanted) <= set(measured) for wanted, measured in pairs)


def start_plan(info: TargetInfo, gamma: int, step_seconds: float) -> ProfilePlan | None:
    """Every size that a block of `gamma` drafts can have; fewer where that would take too long.

    A piece of work is taken to last as long as a plain step. None where even few sizes would take longer than
    `START_CEILING`, or where the target has no room for a block.
    """
    context = min(SHORT_CONTEXT, info.max_positions - gamma - 1)
    if context < 1:
        return None
    drafts, few = tuple(range(1, gamma + 1)), sorted({1, min(2, gamma), (gamma + 1) // 2, gamma})
    budget = max(START_SECONDS - SETUP_STEPS * step_seconds, 0.0)
    whole = ProfilePlan((context,), (1, *(k + 1 for k in drafts)), drafts, budget)
    coarse = ProfilePlan((context,), (1, *(k + 1 for k in few)), (1, gamma) if gamma > 1 else (1,), budget)
    for plan, limit in ((whole, START_SECONDS), (coarse, START_CEILING)):
        if step_seconds * (SETUP_STEPS + plan.points * LEAST_TURNS) <= limit:
            return plan
    return None


def served_start_plan(info: TargetInfo, gamma: int, step_seconds: float, requests: int) -> ProfilePlan | None:
    """What up to `requests` at once need beside every size of one block; fewer sizes where that would take too long.

    None where even those would take longer than `SERVED_START_CEILING`, or where the target has no room for a block.
    """
    alone = start_plan(info, gamma, 0.0)
    if alone is None:
        return None
    context = min(SERVED_START_CONTEXT, info.max_positions - gamma - 1)
    largest = requests * (gamma + 1)
    many = {size for size in SERVED_START_TOKENS if gamma + 1 < size < largest} | {
        min(largest, SERVED_START_TOKENS[-1])
    }
    at_once = sorted({count for count in SERVED_START_REQUESTS if count < requests} | {requests})
    budget = max(SERVED_START_SECONDS - SETUP_STEPS * step_seconds, 0.0)
    few = {1, 2, (gamma + 1) // 2 + 1, gamma + 1}
    ends = (1, gamma) if gamma > 1 else alone.drafts
    whole = ProfilePlan((context,), tuple(sorted({*alone.tokens, *many})), alone.drafts, budget, tuple(at_once))
    coarse = replace(whole, tokens=tuple(sorted(few | many)), drafts=ends, requests=tuple(sorted({1, requests})))
    for plan, limit in ((whole, SERVED_START_SECONDS), (coarse, SERVED_START_CEILING)):
        if step_seconds * (SETUP_STEPS + plan.steps * LEAST_TURNS) <= limit:
            return plan
    return None


def full_plan(
    info: TargetInfo,
    gamma: int,
    contexts: Sequence[int] = (),
    budget_seconds: float = FULL_SECONDS,
    requests: int = 1,
) -> ProfilePlan:
    """The curve at each of `contexts`, by default at those of `CONTEXTS` that fit the target.

    For one request up to 128 rows, for several up to all that they can verify. A context as short as `SHORT_CONTEXT` is
    always among them: decoding is planned by it.

    Raises:
        ConfigError: a context leaves no room for a block, or there are no requests.
    """
    if requests < 1:
        raise ConfigError(f"requests are {requests}; expected 1 or more")
    room = info.max_positions - gamma - 1
    impossible = [context for context in contexts if not 1 <= context <= room]
    if impossible or room < 1:
        raise ConfigError(
            f"context {impossible[0] if impossible else 1} does not fit: {info.name} has {info.max_positions} "
            f"positions, of which a block of {gamma} drafts takes {gamma + 1}; choose 1 to {room}"
        )
    alone = requests == 1
    fitting = [context for context in CONTEXTS if context <= (info.max_positions - MANY_TOKENS[-1] if alone else room)]
    chosen = sorted(set(contexts)) or fitting
    if not chosen or chosen[0] > SHORT_CONTEXT:
        chosen.insert(0, min(SHORT_CONTEXT, room))
    largest = requests * (gamma + 1)
    most = info.max_positions - chosen[-1] if alone else largest
    sizes = {size for size in (MANY_TOKENS if alone else SERVED_TOKENS) if size <= most}
    tokens = sizes | set(range(1, gamma + 2)) | (set() if alone else {largest})
    at_once = {2**power for power in range(requests.bit_length())} | {requests}
    return ProfilePlan(
        tuple(chosen), tuple(sorted(tokens)), tuple(range(1, gamma + 1)), budget_seconds, tuple(sorted(at_once))
    )


def _steps(sizes: Sequence[int]) -> float:
    """About how many plain steps forwards of these sizes take, one after another."""
    return sum(max(1.0, size / ROWS_OF_A_STEP) for size in sizes)
