"""Measuring what rounds cost here: verification by tokens and context, a block by drafts, and the rest of a round.

The work is that of the reference loop: one request, with the drafter's taps, logits of every row. More rows than a
block has are measured as one forward, which is what a batch of requests will be.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from dspark.engine.profile_plan import ProfilePlan
from dspark.engine.reference import ReferenceLoop
from dspark.engine.round_profile import RoundProfile
from dspark.engine.stopwatch import Clock
from dspark.engine.timing_turns import Timings, common_noise, take_turns
from dspark.scheduling.cost_table import CostTable
from dspark.types import Cache, Drafter, SamplingParams, Target, TargetInfo, TargetOutput

OVERHEAD_ROUNDS = 2
PREFILL_CHUNK = 512


@dataclass(frozen=True, slots=True)
class VerifyPoint:
    """A verification of `tokens` rows after `context` positions."""

    context: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BlockPoint:
    """A block of `drafts` tokens, and showing the drafter one committed position."""

    drafts: int


Point = VerifyPoint | BlockPoint


@torch.inference_mode()
def profile_rounds(
    target: Target,
    drafter: Drafter | None,
    plan: ProfilePlan,
    random: Random,
    clock: Clock = time.perf_counter,
    watch: Callable[[float], None] = lambda share: None,
    subject: str = "",
) -> RoundProfile:
    """The profile of `plan` for `target` and `drafter`, which is said to belong to `subject`.

    `random` orders the measurements; `watch` is told the share of the budget that is spent.
    """
    taps = () if drafter is None else drafter.info.target_layer_ids
    fillings = [_Filled(target, taps, context, plan.tokens[-1]) for context in plan.contexts]
    work: dict[Point, Callable[[], None]] = {
        VerifyPoint(filled.context, tokens): _verification(filled, tokens)
        for filled in fillings
        for tokens in plan.tokens
    }
    if drafter is not None:
        work |= _blocks(drafter, fillings[0].features, plan.drafts)
    for filled in fillings:
        filled.verify(plan.tokens[-1])  # warms up: the largest sizes the buffers that all others use
    overhead = overhead_seconds(target, clock)
    timings = take_turns(work, plan.budget_seconds, random, clock, watch)
    return _profile(plan, timings, overhead, subject)


def step_seconds(target: Target, clock: Clock = time.perf_counter) -> float:
    """Seconds of a plain decoding step on an empty context, the second of two."""
    filled = _Filled(target, (), 1, 1)
    before = clock()
    filled.verify(1)
    return clock() - before


def overhead_seconds(target: Target, clock: Clock = time.perf_counter) -> float:
    """Seconds of a plain round of the reference loop outside the target: judging, committing, bookkeeping."""
    watched = _WatchedTarget(target, clock)
    params = SamplingParams(max_tokens=OVERHEAD_ROUNDS + 1, ignore_eos=True)
    commits = iter(ReferenceLoop(watched, clock=clock).start([0], params))
    next(commits)
    rests: list[float] = []
    while True:
        before, watched.seconds = clock(), 0.0
        if next(commits, None) is None:
            return max(min(rests, default=0.0), 0.0)
        rests.append(clock() - before - watched.seconds)


class _Filled:
    """A request of `context` committed positions, which `verify` leaves as it was."""

    def __init__(self, target: Target, taps: Sequence[int], context: int, most: int) -> None:
        self.context, self._target, self._taps = context, target, taps
        self._tokens = torch.arange(max(context, most)) % target.info.vocab_size
        self._cache = target.new_cache(context + most)
        prompt, starts = self._tokens[:context], range(0, context, PREFILL_CHUNK)
        outputs = [target.forward(prompt[first : first + PREFILL_CHUNK], self._cache, taps) for first in starts]
        self.features = torch.cat([output.features for output in outputs])

    def verify(self, tokens: int) -> None:
        output = self._target.forward(self._tokens[:tokens], self._cache, self._taps)
        self._target.logits(output.last_hidden)
        self._cache.rollback(self.context)


def _verification(filled: _Filled, tokens: int) -> Callable[[], None]:
    return lambda: filled.verify(tokens)


def _blocks(drafter: Drafter, features: Tensor, drafts: Sequence[int]) -> dict[Point, Callable[[], None]]:
    """Greedy blocks as the reference loop drafts them, after the context of `features` [T, m * d]."""
    context = len(features)
    cache = drafter.new_cache(context + drafter.info.gamma + 1)
    drafter.extend(features, cache)

    def block(count: int) -> None:
        proposed, token = drafter.begin(0, cache, count), 0
        for _ in range(count):
            token = int(proposed.step(token)[0].argmax())
        cache.rollback(context)
        drafter.extend(features[:1], cache)
        cache.rollback(context)

    block(drafts[-1])
    return {BlockPoint(count): (lambda count=count: block(count)) for count in drafts}  # type: ignore[misc]


def _profile(plan: ProfilePlan, timings: Timings[Point], overhead: float, subject: str) -> RoundProfile:
    verify = [[timings.points[VerifyPoint(c, n)] for n in plan.tokens] for c in plan.contexts]
    blocks = [timings.points[BlockPoint(count)] for count in plan.drafts]
    table = CostTable(
        tokens=plan.tokens,
        contexts=plan.contexts,
        verify_seconds=tuple(tuple(point.seconds for point in row) for row in verify),
        requests=(1,),
        draft_seconds=(blocks[-1].seconds if blocks else 0.0,),
        overhead_seconds=overhead,
        noise=common_noise([point for row in verify for point in row]),
        subject=subject,
    )
    return RoundProfile(
        table=table,
        drafts=plan.drafts,
        block_seconds=tuple(point.seconds for point in blocks),
        verify_noise=tuple(tuple(point.noise for point in row) for row in verify),
        block_noise=tuple(point.noise for point in blocks),
        turns=timings.turns,
    )


class _WatchedTarget:
    """A `Target` that adds up the seconds spent in it."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self.info: TargetInfo = target.info
        self.seconds = 0.0
        self._target, self._clock = target, clock

    def new_cache(self, capacity: int) -> Cache:
        return self._target.new_cache(capacity)

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        before = self._clock()
        output = self._target.forward(token_ids, cache, taps)
        self.seconds += self._clock() - before
        return output

    def logits(self, last_hidden: Tensor) -> Tensor:
        before = self._clock()
        logits = self._target.logits(last_hidden)
        self.seconds += self._clock() - before
        return logits
