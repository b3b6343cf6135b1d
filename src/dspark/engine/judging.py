"""Judging a step's rounds with one product of the LM head, which gives logits only where somebody needs them.

Shapes: N rows of all rounds, V vocabulary, d width.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dspark.core.sampling import check_finite
from dspark.engine.abilities import knows_best
from dspark.engine.batch_sampler import BatchRound
from dspark.errors import SamplingError
from dspark.types import Target, Verdict

Round = tuple[BatchRound, Sequence[int]]
"""Draws of some requests, and how many drafts of each are judged."""


def judge_rounds(target: Target, rounds: Sequence[Round], hidden: Tensor) -> list[Verdict]:
    """The verdicts of all requests in order, given the states [N, d] after 0, ..., k drafts of each.

    Raises SamplingError where a deciding row is masked altogether or not finite.
    """
    lengths = [length for _, own in rounds for length in own]
    ends = list(accumulate(length + 1 for length in lengths))
    spans = [range(end - length - 1, end) for end, length in zip(ends, lengths, strict=True)]
    greedy = knows_best(target)
    easy = [taken and greedy for sampler, _ in rounds for taken in sampler.takes_best]
    best = _best(target, hidden, [row for span, one in zip(spans, easy, strict=True) if one for row in span])
    rest = [row for span, one in zip(spans, easy, strict=True) if not one for row in span]
    logits = target.logits(hidden[rest] if len(rest) < len(hidden) else hidden) if rest else hidden[:0]
    verdicts: list[Verdict] = []
    at = 0
    for sampler, own in rounds:
        first = len(verdicts)
        known = {i: [best[row] for row in spans[first + i]] for i in range(len(own)) if easy[first + i]}
        count = sum(length + 1 for i, length in enumerate(own) if i not in known)
        verdicts += sampler.judge(logits[at : at + count], own, known)
        at += count
    return verdicts


def judge_each(target: Target, rounds: Sequence[Round], hidden: Tensor) -> list[Verdict | SamplingError]:
    """`judge_rounds`, and where that fails one request after another: who cannot be judged has an error."""
    try:
        return [*judge_rounds(target, rounds, hidden)]
    except SamplingError:
        alone = [(sampler.alone(row), [length]) for sampler, own in rounds for row, length in enumerate(own)]
        parts = torch.split(hidden, [length + 1 for _, (length,) in alone])
        return [_judge_alone(target, one, part) for one, part in zip(alone, parts, strict=True)]


def _judge_alone(target: Target, one: Round, hidden: Tensor) -> Verdict | SamplingError:
    try:
        (verdict,) = judge_rounds(target, [one], hidden)
    except SamplingError as error:
        return error
    return verdict


def _best(target: Target, hidden: Tensor, rows: Sequence[int]) -> dict[int, int]:
    """The likeliest token of each of `rows`."""
    if not rows or not knows_best(target):
        return {}
    scores, tokens = target.best_tokens(hidden[list(rows)] if len(rows) < len(hidden) else hidden)
    check_finite(scores.numpy(force=True))
    return dict(zip(rows, tokens.tolist(), strict=True))
