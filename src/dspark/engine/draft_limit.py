"""How many drafts a round should hold on this machine: measured before decoding, from cost and past acceptance only.

Throughput of k drafts is expected tokens over the whole round's time, E(k) / (D(k) + V(k + 1)); k = 0 is plain
decoding at 1 / V(1), always among the choices (contract 3). Nothing here depends on drafts yet to be made, so the law
of the text is untouched.
"""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median

import torch

from dspark.engine.stopwatch import Clock
from dspark.types import Drafter, Target

CONTEXT = 64
"""Committed positions behind the measured rounds: short, as most of a chat's first rounds are."""

DEFAULT_ACCEPTANCE = 0.6
"""Conditional acceptance per position of a drafter that records none."""


def measure_draft_limit(
    target: Target,
    drafter: Drafter,
    acceptance: Sequence[float] = (),
    repeats: int = 5,
    clock: Clock = time.perf_counter,
) -> int:
    """The number of drafts 0 ... gamma with the highest expected throughput.

    Conditional acceptances by position are those given, else those that the drafter records; missing ones repeat the
    last.
    """
    gamma = drafter.info.gamma
    known = acceptance or drafter.info.acceptance or (DEFAULT_ACCEPTANCE,)
    conditional = [known[min(k, len(known) - 1)] for k in range(gamma)]
    survival = accumulate(conditional, lambda a, c: a * c)
    return best_limit(*round_seconds(target, drafter, repeats, clock), list(survival))


def best_limit(verify: Sequence[float], draft: Sequence[float], survival: Sequence[float]) -> int:
    """argmax over k of E(k) / (draft[k] + verify[k]), E(k) = 1 + the first k survivals; the smaller k on ties.

    `verify[k]` and `draft[k]` [gamma + 1] are the seconds of a round with k drafts.
    """
    expected = list(accumulate(survival, initial=1.0))
    rates = [tokens / (v + d) for tokens, v, d in zip(expected, verify, draft, strict=True)]
    return rates.index(max(rates))


@torch.inference_mode()
def round_seconds(target: Target, drafter: Drafter, repeats: int, clock: Clock) -> tuple[list[float], list[float]]:
    """(verify [gamma + 1], draft [gamma + 1]) median seconds of rounds with 0 ... gamma drafts."""
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
        if drafts == 0:
            return
        block, token = drafter.begin(0, draft_cache, drafts), 0
        for _ in range(drafts):
            token = int(block.step(token)[0].argmax())
        draft_cache.rollback(CONTEXT)
        drafter.extend(output.features[:1], draft_cache)
        draft_cache.rollback(CONTEXT)

    return _medians(verify, gamma, repeats, clock), _medians(draft, gamma, repeats, clock)


def _medians(work: Callable[[int], None], gamma: int, repeats: int, clock: Clock) -> list[float]:
    """Median seconds of work(0), ..., work(gamma), taking turns so that drift hits all alike; turn 0 warms up."""
    seconds: list[list[float]] = [[] for _ in range(gamma + 1)]
    for turn in range(repeats + 1):
        for drafts, samples in enumerate(seconds):
            started = clock()
            work(drafts)
            if turn:
                samples.append(clock() - started)
    return [median(samples) for samples in seconds]
