"""How many tokens prompt lookup should copy at a time on this machine: chosen before decoding, as `draft_limit` is.

A copy takes the place of a round of the drafter, which makes r = E / t tokens a second. So the best k has the largest
surplus E(k) - r V(k + 1) over what would have been made in the same time. Without a surplus beyond the profile's noise
nothing is copied.
"""

from dspark.core.params import is_greedy
from dspark.drafters.prompt_lookup import ACCEPTANCE, PromptLookup
from dspark.engine.draft_limit import NEAR, DraftLimit, expected_by_acceptance, expected_tokens, round_seconds
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
    rate = expected_tokens(info, params)[drafts] / round_seconds(profile, info, row_seconds)[drafts]
    verify = profile.table.verify(1, 1 + info.gamma, SHORT_CONTEXT) + profile.table.overhead_seconds
    expected = expected_by_acceptance(ACCEPTANCE.greedy if is_greedy(params) else ACCEPTANCE.sampled, info.gamma)
    surplus = [
        e - rate * (float(t) + (k + 1) * row_seconds) for k, (e, t) in enumerate(zip(expected, verify, strict=True))
    ]
    best = max(range(1, len(surplus)), key=surplus.__getitem__)
    return PromptLookup(best) if surplus[best] > max(profile.table.noise, NEAR) * expected[best] else None
