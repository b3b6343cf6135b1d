"""Algorithm 1 of the paper as printed, one confidence at a time: the oracle for the vectorised scheduler."""

import heapq
from collections.abc import Callable


def algorithm_1(c: Callable[[int, int], float], sps: Callable[[int], float], requests: int, gamma: int) -> list[int]:
    """Verified lengths of all requests; `c(r, j)` is the confidence of draft j = 1 ... gamma of request r.

    `sps(B)` are engine steps per second with B tokens. c(r, j) is read only once draft j - 1 of r is admitted, so that
    the causality of the early stop can be seen. Equal survivals go by position, then request.
    """
    candidates: list[tuple[float, int, int]] = []

    def reveal(r: int, j: int, survival: float) -> None:
        a = survival * c(r, j) if j <= gamma else 0.0
        if a > 0:
            heapq.heappush(candidates, (-a, j, r))

    for r in range(requests):
        reveal(r, 1, 1.0)
    lengths, tokens, tau = [0] * requests, requests, float(requests)
    best = requests * sps(requests)
    while candidates:
        negated, j, r = heapq.heappop(candidates)
        tokens, tau = tokens + 1, tau - negated
        theta = tau * sps(tokens)
        if theta <= best:
            break
        best, lengths[r] = theta, j
        reveal(r, j + 1, -negated)
    return lengths
