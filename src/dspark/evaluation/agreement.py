"""Whether two greedy outputs agree, and if not, whether the target itself was undecided there.

A forward of several tokens rounds differently from a forward of one, so at reduced precision greedy decoding may turn
at a near-tie. Such a turn is told from an error by the target's own margin between its two likeliest tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dspark.types import Target, as_ids

NEAR_TIE = 0.1
"""Logit margin below which rounding may decide: bf16 keeps 8 bits, logits are about 20."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first output position where two outputs differ, and the target's top-2 logit margin there.

    `explained` says that the two tokens are the target's two likeliest and that their margin is a near-tie. An output
    that merely stops short of the other is never explained: its margin is infinite.
    """

    position: int
    margin: float
    explained: bool


def first_divergence(
    target: Target, prompt_ids: Sequence[int], one: Sequence[int], other: Sequence[int], near_tie: float = NEAR_TIE
) -> Divergence | None:
    """Compare greedy outputs `one` and `other` of the same prompt, end tokens included; None if they are equal.

    The margin is read in one forward over the prompt and the common output.
    """
    pairs = zip(one, other, strict=False)
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        same = len(one) == len(other)
        return None if same else Divergence(min(len(one), len(other)), math.inf, explained=False)
    context = as_ids([*prompt_ids, *one[:position]])
    output = target.forward(context, target.new_cache(len(context)))
    best, tokens = torch.topk(target.logits(output.last_hidden[-1]), 2)
    margin = float(best[0] - best[1])
    undecided = {one[position], other[position]} == set(tokens.tolist())
    return Divergence(position, margin, undecided and margin < near_tie)
