"""What sampling adds to a round: every row of logits becomes a law, which greedy rounds do without."""

import time

import torch

from dspark.core.params import is_greedy
from dspark.core.sampling import probabilities
from dspark.engine.stopwatch import Clock
from dspark.types import SamplingParams

REPEATS = 5
SPREAD = 3.0
"""Standard deviation of the logits that are timed: about that of a language model's."""


@torch.inference_mode()
def row_seconds(vocab_size: int, params: SamplingParams, clock: Clock = time.perf_counter) -> float:
    """Seconds of filtering one row of logits [V] as `params` ask, the fastest of a few; 0 for greedy requests."""
    if is_greedy(params):
        return 0.0
    logits = SPREAD * torch.randn(vocab_size, generator=torch.Generator().manual_seed(0))
    times: list[float] = []
    for _ in range(REPEATS):
        before = clock()
        probabilities(logits, params)
        times.append(clock() - before)
    return min(times)
