"""The exact joint law of two requests' texts after one scheduled round, by enumeration. V = 2, gamma = 3."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspark.core.rejection import RejectionRule

V, GAMMA, REQUESTS = 2, 3, 2
Tokens = tuple[int, ...]
Array = NDArray[np.float64]
BLOCKS: list[Tokens] = list(product(range(V), repeat=GAMMA))
TEXTS: list[Tokens] = list(product(range(V), repeat=GAMMA + 1))

LEVELS = (0.0, 0.25, 0.5, 1.0, 1.0)
"""Confidences that are drawn: few, so that survivals tie often; 1 twice, since sigmoids saturate."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request with random laws: `p` and `q` [V] after each prefix, confidence `c` after each prefix of drafts."""

    p: dict[Tokens, Tensor]
    q: dict[Tokens, Tensor]
    c: dict[Tokens, float]

    def confidences(self, block: Tokens) -> list[float]:
        """c_1 ... c_gamma: c_j reads the drafts before j only."""
        return [self.c[block[:j]] for j in range(GAMMA)]

    def own_probabilities(self, block: Tokens) -> list[float]:
        """The drawn tokens' own draft probabilities: what must not serve as confidence."""
        return [float(self.q[block[:j]][block[j]]) for j in range(GAMMA)]

    def block_law(self) -> Array:
        """Probability [blocks] of each drafted block."""
        return np.array([np.prod(self.own_probabilities(block)) for block in BLOCKS])

    def target_law(self) -> Array:
        """Probability [texts] when the target decodes alone."""
        return self._continued(())

    def round_laws(self, rule: RejectionRule) -> Array:
        """Law [blocks, gamma + 1, texts] of the text after drafting a block and verifying 0 ... gamma of it."""
        continued = cache(self._continued)
        law_of = cache(lambda drafts: self._round_law(rule, drafts, continued))
        return np.array([[law_of(block[:n]) for n in range(GAMMA + 1)] for block in BLOCKS])

    def _round_law(self, rule: RejectionRule, drafts: Tokens, continued: Callable[[Tokens], Array]) -> Array:
        p = torch.stack([self.p[drafts[:i]] for i in range(len(drafts) + 1)])
        q = torch.stack([self.q[drafts[:i]] for i in range(len(drafts))]) if drafts else p[:0]
        law = np.zeros(len(TEXTS))
        for accepted, chance in enumerate(rule.accepted_law(rule.thresholds(p, q, drafts))):
            closing = rule.correction(p, q, drafts, accepted).tolist()
            for token in range(V):
                law += chance * closing[token] * continued((*drafts[:accepted], token))
        return law

    def _continued(self, head: Tokens) -> Array:
        """Law [texts] when the target goes on from `head`."""
        law = np.zeros(len(TEXTS))
        for i, text in enumerate(TEXTS):
            if text[: len(head)] == head:
                law[i] = np.prod([float(self.p[text[:k]][text[k]]) for k in range(len(head), len(text))])
        return law


def random_request(random: np.random.Generator) -> Request:
    """Laws and confidences drawn at random."""
    contexts = [text for n in range(GAMMA + 1) for text in product(range(V), repeat=n)]
    p = {context: torch.from_numpy(random.dirichlet([0.7] * V)) for context in contexts}
    q = {context: torch.from_numpy(random.dirichlet([0.7] * V)) for context in contexts}
    c = {context: float(random.choice(LEVELS)) for context in contexts}
    return Request(p, q, c)


@dataclass(frozen=True, slots=True)
class Instance:
    """Two requests under one rejection rule, everything that a schedule does not change precomputed."""

    requests: tuple[Request, Request]
    rounds: tuple[Array, Array]

    @classmethod
    def random(cls, random: np.random.Generator, rule: RejectionRule) -> "Instance":
        """Two random requests."""
        requests = random_request(random), random_request(random)
        return cls(requests, (requests[0].round_laws(rule), requests[1].round_laws(rule)))

    def distance(self, lengths: Callable[[Tokens, Tokens], tuple[int, int]]) -> float:
        """Total variation between the joint law of both texts and the target's, `lengths` deciding on both blocks."""
        n, m = np.array([[lengths(x, y) for y in BLOCKS] for x in BLOCKS]).transpose(2, 0, 1)
        i, k = np.indices(n.shape)
        chance = np.outer(*(request.block_law() for request in self.requests))
        joint = np.einsum("ik,ikt,iku->tu", chance, self.rounds[0][i, n], self.rounds[1][k, m], optimize=True)
        target = np.outer(self.requests[0].target_law(), self.requests[1].target_law())
        return float(np.abs(joint - target).sum() / 2)


@cache
def instances(rule: RejectionRule, count: int) -> tuple[Instance, ...]:
    """The first `count` random instances."""
    return tuple(Instance.random(np.random.default_rng(seed), rule) for seed in range(count))


def jagged_seconds(random: np.random.Generator) -> Array:
    """Seconds of 1 ... REQUESTS * (GAMMA + 1) tokens: cliffs, plateaus, steps down, on the whole near break-even."""
    size = REQUESTS * (GAMMA + 1) - 1
    steps = np.where(random.random(size) < 0.5, random.uniform(0.2, 0.5, size), random.uniform(-0.05, 0.1, size))
    return np.cumsum([1.0, *steps])
