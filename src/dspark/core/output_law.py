"""The exact law of decoded text, by enumeration instead of sampling. For tiny vocabularies: it visits V^gamma blocks.

Built from the same thresholds and corrections as sampling, so a difference to the target's law is a bias of the rule.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from dspark.core.rejection import RejectionRule

Tokens = tuple[int, ...]
Law = dict[Tokens, float]
"""Probability of each text; texts have equal length unless an end token cuts them."""


def verify_all(context: Tokens, drafts: Tokens) -> int:
    """The default number of drafts to verify: every one."""
    return len(drafts)


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to decode: rounds of up to `gamma` drafts, judged by `rule`.

    `target(context)` [V] is the law of the token after `context`, `draft(context, drafts)` [V] that of the next draft
    (no mass: drafting ends here), `verified(context, drafts)` how many drafts of a full block are verified. To be
    lossless, whether that number reaches j may depend on the drafts before j only; here nothing enforces it, so that
    a biased rule can be measured.
    """

    target: Callable[[Tokens], Tensor]
    draft: Callable[[Tokens, Tokens], Tensor]
    rule: RejectionRule
    gamma: int
    verified: Callable[[Tokens, Tokens], int] = verify_all
    end_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """With `probability`, a round keeps the tokens `accepted` and closes with a token drawn from `closing` [V]."""

    probability: float
    accepted: Tokens
    closing: Tensor


def round_outcomes(scheme: Scheme, context: Tokens) -> Iterator[Outcome]:
    """Everything that can happen in one round after `context`."""
    for chance, drafts in _blocks(scheme, context, ()):
        drafts = drafts[: scheme.verified(context, drafts)]
        p = torch.stack([scheme.target(context + drafts[:i]) for i in range(len(drafts) + 1)])
        rows = [scheme.draft(context, drafts[:i]) for i in range(len(drafts))]
        q = torch.stack(rows) if rows else p[:0]
        law = scheme.rule.accepted_law(scheme.rule.thresholds(p, q, drafts))
        for accepted, share in enumerate(law):
            if share > 0:
                yield Outcome(chance * share, drafts[:accepted], scheme.rule.correction(p, q, drafts, accepted))


def output_law(scheme: Scheme, horizon: int, context: Tokens = ()) -> Law:
    """Law of the next `horizon` tokens (fewer after an end token) when decoding round after round."""
    scheme = replace(scheme, target=cache(scheme.target), draft=cache(scheme.draft))

    @cache
    def law_after(context: Tokens, horizon: int) -> Law:
        if horizon == 0 or (context and context[-1] in scheme.end_tokens):
            return {(): 1.0}
        law: Law = {}
        for chance, head in _heads(scheme, context, horizon):
            for tail, share in law_after(context + head, horizon - len(head)).items():
                law[head + tail] = law.get(head + tail, 0.0) + chance * share
        return law

    return law_after(context, horizon)


def target_law(scheme: Scheme, horizon: int, context: Tokens = ()) -> Law:
    """Law of the next `horizon` tokens when the target decodes alone, one token at a time."""
    if horizon == 0 or (context and context[-1] in scheme.end_tokens):
        return {(): 1.0}
    law: Law = {}
    for token, chance in enumerate(scheme.target(context).tolist()):
        if chance > 0:
            tails = target_law(scheme, horizon - 1, (*context, token))
            law.update({(token, *tail): chance * share for tail, share in tails.items()})
    return law


def expected_accepted(scheme: Scheme, context: Tokens = ()) -> float:
    """Mean number of drafts that survive the round after `context`."""
    return sum(outcome.probability * len(outcome.accepted) for outcome in round_outcomes(scheme, context))


def total_variation(a: Mapping[Tokens, float], b: Mapping[Tokens, float]) -> float:
    """Half the summed absolute difference of two laws."""
    return sum(abs(a.get(text, 0.0) - b.get(text, 0.0)) for text in a.keys() | b.keys()) / 2


def _heads(scheme: Scheme, context: Tokens, horizon: int) -> Iterator[tuple[float, Tokens]]:
    """What one round adds to the text, cut at `horizon` tokens and at an end token, with its probability."""
    heads: Law = {}
    for outcome in round_outcomes(scheme, context):
        for token, chance in enumerate(outcome.closing.tolist()):
            head = _cut((*outcome.accepted, token)[:horizon], scheme.end_tokens)
            heads[head] = heads.get(head, 0.0) + outcome.probability * chance
    return ((chance, head) for head, chance in heads.items() if chance > 0)


def _blocks(scheme: Scheme, context: Tokens, drafts: Tokens) -> Iterator[tuple[float, Tokens]]:
    q = scheme.draft(context, drafts).tolist() if len(drafts) < scheme.gamma else []
    if sum(q) == 0:
        yield 1.0, drafts
        return
    for token, chance in enumerate(q):
        if chance > 0:
            for rest, block in _blocks(scheme, context, (*drafts, token)):
                yield chance * rest, block


def _cut(tokens: Tokens, end_tokens: frozenset[int]) -> Tokens:
    ends = (i for i, token in enumerate(tokens, start=1) if token in end_tokens)
    return tokens[: next(ends, len(tokens))]
