"""How many tokens prompt lookup should copy at a time on this machine: chosen before decoding, as `draft_limit` is.

Where a text repeats itself, one copy follows another, so the best length has the highest rate E(k) / V(k + 1); copies
take the place of rounds of the drafter, whose rate they must beat by more than the noise of the profile.
"""

from dspark.core.params import is_greedy
from dspark.drafters.prompt_lookup import ACCEPTANCE, PromptLookup
from dspark.engine.draft_limit import (
    NEAR,
    DraftLimit,
    best_limit,
    expected_by_acceptance,
    expected_tokens,
    round_seconds,
)
from dspark.engine.profile_plan import SHORT_CONTEXT
from dspark.engine.round_profile import RoundProfile
from dspark.types import DrafterInfo, SamplingParams


def lookup_limit(
    profile: RoundProfile | None, info: DrafterInfo, params: SamplingParams, limit: DraftLimit, row_seconds: float = 0.0
) -> PromptLookup | None:
    """The lookup that pays beside rounds of `limit`, None if none does.

    Where the profile cannot tell, copies have their default length if rounds are drafted, and are left out if not. They
    are as long as the profile reaches, gamma tokens, at most. `row_seconds` is the time of each of the target's k + 1
    laws; copies have none.
    """
    drafts = limit.drafts
    if profile is None or not profile.resolved(info.gamma, SHORT_CONTEXT):
        return PromptLookup() if drafts > 0 else None
    undrafted = profile.undrafted(info.gamma, SHORT_CONTEXT)
    seconds = [float(time) + (k + 1) * row_seconds for k, time in enumerate(undrafted)]
    expected = expected_by_acceptance(ACCEPTANCE.greedy if is_greedy(params) else ACCEPTANCE.sampled, info.gamma)
    seconds[0] = round_seconds(profile, info, row_seconds)[drafts]  # in place of no copies, the rounds that there are
    expected[0] = expected_tokens(info, params)[drafts]
    best = best_limit(seconds, expected, max(profile.table.noise, NEAR))
    return PromptLookup(best) if best > 0 else None
