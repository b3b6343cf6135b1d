"""Measuring what rounds cost here: verification by tokens and context, a block by drafts, and the rest of a round.

For one request the work is that of the reference loop, with the drafter's taps and logits of every row. A plan for many
has the geometry of a serving engine (`served_work.py`): one ragged forward over the rows of several requests, blocks of
all of them at once. Where the target cannot do that, more rows than a block has are one request's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from dspark.engine.profile_plan import ProfilePlan
from dspark.engine.reference import ReferenceLoop
from dspark.engine.round_profile import RoundProfile
from dspark.engine.served_work import DraftPoint, ServedWork, VerifyPoint
from dspark.engine.stopwatch import Clock
from dspark.engine.timing_turns import Timing, Timings, common_noise, take_turns
from dspark.errors import ConfigError
from dspark.scheduling.cost_table import CostTable
from dspark.types import Cache, Drafter, RaggedTarget, SamplingParams, Target, TargetInfo, TargetOutput

OVERHEAD_ROUNDS = 2
PREFILL_CHUNK = 512


@dataclass(frozen=True, slots=True)
class BlockPoint:
    """A block of `drafts` tokens, and showing the drafter one committed position."""

    drafts: int


Point = VerifyPoint | BlockPoint | DraftPoint


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
    work = (_served if plan.serving else _alone)(target, drafter, plan)
    if drafter is not None:
        work |= _blocks(
            drafter, _Filled(target, drafter.info.target_layer_ids, plan.contexts[0], 1).features, plan.drafts
        )
    overhead = overhead_seconds(target, clock)
    timings = take_turns(work, plan.budget_seconds, random, clock, watch)
    return _profile(plan, timings, overhead, subject)


def step_seconds(target: Target, clock: Clock = time.perf_counter) -> float:
    """Seconds of a plain decoding step on an empty context: the faster of two after a first one.

    A pause of the machine in one of them does not make a target look slow, whose profile would then be left out.
    """
    filled, seconds = _Filled(target, (), 1, 1), []
    for _ in range(2):
        before = clock()
        filled.verify(1)
        seconds.append(clock() - before)
    return min(seconds)


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


def _alone(target: Target, drafter: Drafter | None, plan: ProfilePlan) -> dict[Point, Callable[[], None]]:
    """Verification of all sizes as one request's."""
    taps = () if drafter is None else drafter.info.target_layer_ids
    fillings = [_Filled(target, taps, context, plan.tokens[-1]) for context in plan.contexts]
    for filled in fillings:
        filled.verify(plan.tokens[-1])  # warms up: the largest sizes the buffers that all others use
    return {VerifyPoint(filled.context, n): _verification(filled, n) for filled in fillings for n in plan.tokens}


def _served(target: Target, drafter: Drafter | None, plan: ProfilePlan) -> dict[Point, Callable[[], None]]:
    """Verification and drafting as an engine of many requests does them."""
    if not isinstance(target, RaggedTarget):
        raise ConfigError(
            f"{target.info.name} takes one request a forward: there is no batch of {plan.requests[-1]} to measure; "
            "profile one request"
        )
    served = ServedWork(target, drafter, plan)
    verification, drafting = served.verification(), served.drafting()
    verification[max(verification, key=lambda point: (point.tokens, point.context))]()  # warms up: the largest of all
    if drafting:
        drafting[max(drafting, key=lambda point: point.requests)]()
    return _together(verification, drafting)


def _together(*parts: Mapping[Any, Callable[[], None]]) -> dict[Point, Callable[[], None]]:
    return {point: piece for part in parts for point, piece in part.items()}


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
    points = timings.points
    verify = [[points[VerifyPoint(c, n, plan.spread(n))] for n in plan.tokens] for c in plan.contexts]
    blocks = [points[BlockPoint(count)] for count in plan.drafts]
    first, whole = _drafting(points, plan, 1), _drafting(points, plan, plan.gamma)
    owners = plan.owners()
    table = CostTable(
        tokens=plan.tokens,
        contexts=plan.contexts,
        verify_seconds=tuple(tuple(point.seconds for point in row) for row in verify),
        requests=tuple(whole) or (1,),
        draft_seconds=tuple(whole.values()) or (blocks[-1].seconds if blocks else 0.0,),
        overhead_seconds=overhead,
        noise=common_noise([point for row in verify for point in row]),
        subject=subject,
        spread=() if owners is None else tuple(plan.spread(tokens) for tokens in plan.tokens),
        request_seconds=() if owners is None else tuple(_further(plan, points, owners, c) for c in plan.contexts),
        first_draft_seconds=tuple(min(s, whole[count]) for count, s in first.items()),
    )
    return RoundProfile(
        table=table,
        drafts=plan.drafts,
        block_seconds=tuple(point.seconds for point in blocks),
        verify_noise=tuple(tuple(point.noise for point in row) for row in verify),
        block_noise=tuple(point.noise for point in blocks),
        turns=timings.turns,
    )


def _drafting(points: Mapping[Point, Timing], plan: ProfilePlan, slots: int) -> dict[int, float]:
    """Seconds by the number of requests that draft blocks of `slots` at once, as far as they were measured."""
    asked = {count: points.get(DraftPoint(count, slots)) for count in plan.requests}
    return {count: timing.seconds for count, timing in asked.items() if timing is not None}


def _further(plan: ProfilePlan, points: Mapping[Point, Timing], owners: tuple[int, int], context: int) -> float:
    """What one more owner of as many rows takes; never less than nothing, as noise would have it."""
    rows, (few, many) = plan.requests[-1], owners
    seconds = [points[VerifyPoint(context, rows, count)].seconds for count in owners]
    return max((seconds[1] - seconds[0]) / (many - few), 0.0)


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
