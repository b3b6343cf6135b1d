"""Which points of the cost curve are measured, and how long that may take."""

from collections.abc import Sequence
from dataclasses import dataclass

from dspark.engine.round_profile import RoundProfile
from dspark.engine.timing_turns import LEAST_TURNS
from dspark.errors import ConfigError
from dspark.types import TargetInfo

SHORT_CONTEXT = 16
"""Committed positions behind the rounds that decoding is planned by: few, as they are filled at every start."""

CONTEXTS = (SHORT_CONTEXT, 256, 1024)
MANY_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Sizes of a verification beyond one request's block: what a batch of requests will ask for."""

START_SECONDS = 2.0
"""What profiling at start should take."""

START_CEILING = 4.0
"""Where it would take longer than this, it is left out."""

SETUP_STEPS = 11
"""What comes before the turns, in plain steps: a first one, the context, the largest block, an answer's few rounds."""

FULL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """Verification of `tokens` rows at every one of `contexts`, blocks of `drafts`, within about `budget_seconds`."""

    contexts: tuple[int, ...]
    tokens: tuple[int, ...]
    drafts: tuple[int, ...]
    budget_seconds: float

    @property
    def points(self) -> int:
        """How many pieces of work one turn holds."""
        return len(self.contexts) * len(self.tokens) + len(self.drafts)

    def covered_by(self, profile: RoundProfile) -> bool:
        """Whether `profile` has all of these points."""
        table = profile.table
        pairs = ((self.contexts, table.contexts), (self.tokens, table.tokens), (self.drafts, profile.drafts))
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


def full_plan(
    info: TargetInfo, gamma: int, contexts: Sequence[int] = (), budget_seconds: float = FULL_SECONDS
) -> ProfilePlan:
    """The curve up to 128 tokens at each of `contexts`, by default at those of `CONTEXTS` that fit the target.

    A context as short as `SHORT_CONTEXT` is always among them: decoding is planned by it.

    Raises ConfigError for a context that leaves no room for a block.
    """
    room = info.max_positions - gamma - 1
    impossible = [context for context in contexts if not 1 <= context <= room]
    if impossible or room < 1:
        raise ConfigError(
            f"context {impossible[0] if impossible else 1} does not fit: {info.name} has {info.max_positions} "
            f"positions, of which a block of {gamma} drafts takes {gamma + 1}; choose 1 to {room}"
        )
    fitting = [context for context in CONTEXTS if context <= info.max_positions - MANY_TOKENS[-1]]
    chosen = sorted(set(contexts)) or fitting
    if not chosen or chosen[0] > SHORT_CONTEXT:
        chosen.insert(0, min(SHORT_CONTEXT, room))
    most = info.max_positions - chosen[-1]
    tokens = sorted({size for size in MANY_TOKENS if size <= most} | set(range(1, gamma + 2)))
    return ProfilePlan(tuple(chosen), tuple(tokens), tuple(range(1, gamma + 1)), budget_seconds)
