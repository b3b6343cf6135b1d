"""How many drafts a round should hold on this machine: measured before decoding, from cost and past acceptance only.

Throughput of k drafts is expected tokens over the whole round's time, E(k) / (D(k) + V(k + 1)); k = 0 is plain
decoding at 1 / V(1), always among the choices (contract 3). Nothing here depends on drafts yet to be made, so the law
of the text is untouched.
"""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf

import torch

from dspark.core.params import is_greedy
from dspark.engine.stopwatch import Clock
from dspark.types import Drafter, DrafterInfo, SamplingParams, Target

CONTEXT = 64
"""Committed positions behind the measured rounds: short, as most of a chat's first rounds are."""

DEFAULT_ACCEPTANCE = 0.6
"""Conditional acceptance per position of a drafter that records none."""

BUDGET_SECONDS = 1.5
"""What measuring may take, warm-up included, where `LEAST_TURNS` take less."""

LEAST_TURNS = 2

NEAR = 0.02
"""Rates that differ by less than this are equal: no clock tells them apart."""


@torch.inference_mode()
def measure_draft_limit(
    target: Target,
    drafter: Drafter,
    params: SamplingParams,
    budget_seconds: float = BUDGET_SECONDS,
    clock: Clock = time.perf_counter,
) -> int:
    """The number of drafts 0 ... gamma with the highest expected throughput for requests like `params`.

    Acceptance is what the drafter records for temperature 0 if `params` are greedy, for temperature 1 otherwise or if
    it records nothing else; positions beyond the record repeat its last.
    """
    return race(decoding_round(target, drafter), expected_tokens(drafter.info, params), budget_seconds, clock)


def expected_tokens(info: DrafterInfo, params: SamplingParams) -> list[float]:
    """E(k) for k = 0 ... gamma: 1 + the sum of the first k survivals, which are products of conditional acceptances."""
    recorded = info.acceptance
    known = (is_greedy(params) and recorded.greedy) or recorded.sampled or (DEFAULT_ACCEPTANCE,)
    conditional = [known[min(k, len(known) - 1)] for k in range(info.gamma)]
    return list(accumulate(accumulate(conditional, lambda a, c: a * c), initial=1.0))


def race(work: Callable[[int], None], expected: Sequence[float], budget_seconds: float, clock: Clock) -> int:
    """argmax over k of expected[k] / seconds of `work(k)`, by as many measurements as it takes or the budget allows.

    Other work on the machine only ever adds time, so the fastest of several rounds is nearest to the truth. All k take
    turns, that drift may hit them alike; after n > 1 turns those more than 2 / n slower than the best drop out, which
    leaves the time to those that are hard to tell apart. The longest round warms up.
    """
    started, turns = clock(), 0
    seconds = [inf] * len(expected)
    contenders = list(range(len(expected)))
    work(contenders[-1])
    while turns < LEAST_TURNS or (len(contenders) > 1 and clock() - started < budget_seconds):
        turns += 1
        for k in contenders:
            before = clock()
            work(k)
            seconds[k] = min(seconds[k], clock() - before)
        rates = [tokens / time for tokens, time in zip(expected, seconds, strict=True)]
        if turns >= LEAST_TURNS:
            contenders = [k for k in contenders if rates[k] * (1 + 2 / turns) >= max(rates)]
    return best_limit(seconds, expected)


def best_limit(seconds: Sequence[float], expected: Sequence[float]) -> int:
    """The smallest k whose rate expected[k] / seconds[k] is the highest, or less than `NEAR` below it."""
    rates = [tokens / time for tokens, time in zip(expected, seconds, strict=True)]
    return next(k for k, rate in enumerate(rates) if rate * (1 + NEAR) >= max(rates))


def decoding_round(target: Target, drafter: Drafter) -> Callable[[int], None]:
    """A function that drafts k tokens and verifies them, after a context that it leaves as it was."""
    gamma = drafter.info.gamma
    taps = drafter.info.target_layer_ids
    target_cache, draft_cache = target.new_cache(CONTEXT + gamma + 1), drafter.new_cache(CONTEXT + gamma + 1)
    context = torch.arange(CONTEXT) % target.info.vocab_size
    output = target.forward(context, target_cache, taps)
    drafter.extend(output.features, draft_cache)

    def verify(drafts: int) -> None:
        states = target.forward(context[: drafts + 1], target_cache, taps)
        target.logits(states.last_hidden)
        target_cache.rollback(CONTEXT)

    def draft(drafts: int) -> None:
        block, token = drafter.begin(0, draft_cache, drafts), 0
        for _ in range(drafts):
            token = int(block.step(token)[0].argmax())
        draft_cache.rollback(CONTEXT)
        drafter.extend(output.features[:1], draft_cache)
        draft_cache.rollback(CONTEXT)

    def decode(drafts: int) -> None:
        if drafts:
            draft(drafts)
        verify(drafts)

    return decode
