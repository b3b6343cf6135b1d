"""How many drafts a round should hold on this machine: chosen before decoding, from cost and past acceptance only.

Throughput of k drafts is expected tokens over the whole round's time, E(k) / (D(k) + V(k + 1) + overhead); k = 0 is
plain decoding, always among the choices (contract 3). Nothing here depends on drafts yet to be made, so the law of the
text is untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from dspark.core.params import is_greedy
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.profile_plan import SHORT_CONTEXT
from dspark.engine.round_profile import RoundProfile
from dspark.types import DrafterInfo, SamplingParams

DEFAULT_ACCEPTANCE = 0.6
"""Conditional acceptance per position of a drafter that records none."""

NEAR = 0.02
"""Rates that differ by less than this are equal however quiet the profile: no clock tells them apart."""

NO_PROFILE = (
    "what rounds cost here is not known, so they are not trimmed and may be slower than plain decoding; "
    "run `dspark profile` once, or limit them with --max-draft-tokens"
)
NOISY_PROFILE = (
    "the cost profile of this machine is too noisy to tell how many drafts pay; "
    "run `dspark profile --fresh` when it is idle"
)


@dataclass(frozen=True, slots=True)
class DraftLimit:
    """At most `drafts` a round, 0 for none; `warning` says so where this is for want of a good profile.

    `lookup` is the prompt lookup that pays beside them, None if none does or nobody asked.
    """

    drafts: int
    warning: str | None = None
    lookup: PromptLookup | None = None


def draft_limit(
    profile: RoundProfile | None, info: DrafterInfo, params: SamplingParams, row_seconds: float = 0.0
) -> DraftLimit:
    """The number of drafts 0 ... gamma with the highest expected throughput for requests like `params`.

    Without a profile all gamma are drafted. Where verification's cost is no clearer than its noise, rounds hold all
    drafts or none: there is no ground for trimming. `row_seconds` as in `round_seconds`.
    """
    if profile is None:
        return DraftLimit(info.gamma, NO_PROFILE)
    seconds, expected = round_seconds(profile, info, row_seconds), expected_tokens(info, params)
    resolved = profile.resolved(info.gamma, SHORT_CONTEXT)
    choices = range(info.gamma + 1) if resolved else (0, info.gamma)
    times, tokens = [seconds[k] for k in choices], [expected[k] for k in choices]
    drafts = choices[best_limit(times, tokens, max(profile.table.noise, NEAR))]
    plain_by_noise = drafts == 0 < best_limit(times, tokens)
    return DraftLimit(drafts, NOISY_PROFILE if plain_by_noise or not resolved else None)


def round_seconds(profile: RoundProfile, info: DrafterInfo, row_seconds: float = 0.0) -> list[float]:
    """Whole rounds of k = 0 ... gamma drafts, `row_seconds` for each of the 2k + 1 laws of a sampled one included."""
    rounds = profile.round_seconds(info.gamma, SHORT_CONTEXT)
    return [float(seconds) + (2 * k + 1) * row_seconds for k, seconds in enumerate(rounds)]


def expected_tokens(info: DrafterInfo, params: SamplingParams) -> list[float]:
    """E(k) for k = 0 ... gamma: 1 + the sum of the first k survivals, which are products of conditional acceptances.

    Acceptance is what the drafter records for temperature 0 if `params` are greedy, for temperature 1 otherwise or if
    it records nothing else; positions beyond the record repeat its last.
    """
    recorded = info.acceptance
    known = (is_greedy(params) and recorded.greedy) or recorded.sampled or (DEFAULT_ACCEPTANCE,)
    return expected_by_acceptance(known, info.gamma)


def expected_by_acceptance(known: Sequence[float], gamma: int) -> list[float]:
    """E(k) for k = 0 ... gamma from conditional acceptances, of which the last one holds on."""
    conditional = [known[min(k, len(known) - 1)] for k in range(gamma)]
    return list(accumulate(accumulate(conditional, lambda a, c: a * c), initial=1.0))


def best_limit(seconds: Sequence[float], expected: Sequence[float], noise: float = NEAR) -> int:
    """The k with the highest rate expected[k] / seconds[k]; a smaller one that is within `NEAR` of it.

    Plain decoding, k = 0, stays the choice until drafting beats it by more than `noise`: it is never to be slower.
    """
    rates = [tokens / time for tokens, time in zip(expected, seconds, strict=True)]
    if rates[0] * (1 + noise) >= max(rates):
        return 0
    return next(k for k, rate in enumerate(rates) if rate * (1 + NEAR) >= max(rates))
