"""The cost profile that decoding starts with: that of an earlier run, or a brief one measured now."""

import time
from random import Random

from dspark.engine.models import Models
from dspark.engine.profile_plan import start_plan
from dspark.engine.profile_store import ProfileKey, ProfileStore
from dspark.engine.profiling import profile_rounds, step_seconds
from dspark.engine.round_profile import RoundProfile
from dspark.engine.stopwatch import Clock

WORTH_KEEPING = 0.05
"""A brief profile noisier than this is used, but measured again at the next start."""

SEED = 0


def start_profile(
    models: Models, store: ProfileStore | None = None, clock: Clock = time.perf_counter
) -> RoundProfile | None:
    """The profile of `models` on this machine, measured in two to four seconds if there is none yet.

    None where there is no drafter, no room in the target to measure a block, or no patience for its slow steps.
    """
    if models.drafter is None:
        return None
    store, key = store or ProfileStore(), ProfileKey.of(models)
    return store.load(key) or _measured(models, store, key, clock)


def _measured(models: Models, store: ProfileStore, key: ProfileKey, clock: Clock) -> RoundProfile | None:
    drafter, _ = models.speculative()
    plan = start_plan(models.target.info, drafter.info.gamma, step_seconds(models.target, clock))
    if plan is None:
        return None
    profile = profile_rounds(models.target, drafter, plan, Random(SEED), clock, subject=key.subject())
    if profile.table.noise <= WORTH_KEEPING:
        store.save(profile, key)
    return profile
