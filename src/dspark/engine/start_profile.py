"""The cost profile that decoding starts with, that of an earlier run or a brief one; what limit follows from it."""

import time
from dataclasses import replace
from random import Random

from dspark.engine.draft_limit import DraftLimit, draft_limit
from dspark.engine.lookup_limit import lookup_limit
from dspark.engine.models import Models
from dspark.engine.profile_plan import served_start_plan, start_plan
from dspark.engine.profile_store import ProfileKey, ProfileStore
from dspark.engine.profiling import profile_rounds, step_seconds
from dspark.engine.round_profile import RoundProfile
from dspark.engine.row_seconds import row_seconds
from dspark.engine.stopwatch import Clock
from dspark.nn.device import clock_of
from dspark.types import BatchDrafter, Drafter, DrafterInfo, RaggedTarget, SamplingParams, Target

WORTH_KEEPING = 0.05
"""A brief profile noisier than this is used, but measured again at the next start."""

WORTH_SERVING = 0.2
"""A noisier one for many requests does for the starts of a day: the times of real rounds correct it (`OnlineCost`)."""

SEED = 0


def start_profile(
    models: Models, store: ProfileStore | None = None, clock: Clock | None = None, requests: int = 1
) -> RoundProfile | None:
    """The profile of `models` on this machine, measured in two to four seconds if there is none yet.

    Of up to `requests` at once, where the target takes them in one forward: then in up to six seconds. None where there
    is no drafter, no room in the target to measure a block, or no patience for its slow steps.
    """
    if models.drafter is None:
        return None
    store, key = store or ProfileStore(), ProfileKey.of(models)
    requests = requests if isinstance(models.target, RaggedTarget) else 1
    for kept in (store.load(key), store.load(key, rough=True) if requests > 1 else None):
        if kept is not None and kept.serves(requests, isinstance(models.drafter, BatchDrafter)):
            return kept
    profile = _measured(models.target, models.drafter, key.subject(), clock or clock_of(models.device), requests)
    if profile is not None and profile.table.noise <= WORTH_KEEPING:
        store.save(profile, key)
    elif profile is not None and requests > 1 and profile.table.noise <= WORTH_SERVING:
        store.save(profile, key, rough=True)
    return profile


def start_limit(models: Models, params: SamplingParams) -> DraftLimit:
    """How many drafts of a round pay for requests like `params`, by the start's profile; none without a drafter."""
    if models.drafter is None:
        return DraftLimit(0)
    info = models.drafter.info
    return _limit(start_profile(models), info, params, row_seconds(info.vocab_size, params))


def measure_draft_limit(
    target: Target, drafter: Drafter, params: SamplingParams, clock: Clock = time.perf_counter
) -> DraftLimit:
    """How many drafts of a round pay on this machine for requests like `params`, copied ones included.

    Use it as `DecodeOptions(limit.drafts, lookup=limit.lookup)`. Measured now, in two to four seconds, and not kept.
    """
    profile = _measured(target, drafter, "", clock)
    return _limit(profile, drafter.info, params, row_seconds(drafter.info.vocab_size, params, clock))


def _limit(
    profile: RoundProfile | None, info: DrafterInfo, params: SamplingParams, seconds_per_row: float
) -> DraftLimit:
    limit = draft_limit(profile, info, params, seconds_per_row)
    return replace(limit, lookup=lookup_limit(profile, info, params, limit, seconds_per_row))


def _measured(target: Target, drafter: Drafter, subject: str, clock: Clock, requests: int = 1) -> RoundProfile | None:
    info, gamma, step = target.info, drafter.info.gamma, step_seconds(target, clock)
    served = served_start_plan(info, gamma, step, requests) if requests > 1 else None
    plan = served or start_plan(info, gamma, step)
    return None if plan is None else profile_rounds(target, drafter, plan, Random(SEED), clock, subject=subject)
