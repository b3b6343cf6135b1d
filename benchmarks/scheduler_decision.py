"""Microseconds of one scheduling decision by batch size: plan and lengths of a whole round, on one thread.

    OMP_NUM_THREADS=1 python benchmarks/scheduler_decision.py [--rounds N] [--seed S] [--json]

Confidences are Beta(4, 1) draws, the cost curve is jagged with a measured point at every number of tokens and two
contexts, every request is seen again in the next round. `lengths` alone is what stands between drafting and verifying;
`plan` may run while the device is busy. `observe`, after the round, is no part of the decision and has its own column.
The median over rounds, and of decisions the fastest tenth, too, which other work disturbs less.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dspark.scheduling import (
    Batch,
    CostTable,
    FixedLength,
    LaggedScheduler,
    Outcome,
    Parked,
    PrefixScheduler,
    Scheduler,
    StaticThreshold,
)

SIZES = ((1, 7), (8, 7), (64, 7), (256, 7), (512, 7), (512, 15), (1024, 7), (4096, 7))
SCHEDULERS: dict[str, Callable[[CostTable], Scheduler]] = {
    "fixed": lambda cost: FixedLength(5),
    "threshold": lambda cost: StaticThreshold(0.5),
    "prefix": PrefixScheduler,
    "lagged": LaggedScheduler,
    "parked lagged": lambda cost: Parked(LaggedScheduler(cost), cost),
}


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of one scheduler at one size, and the share of drafts that it had verified."""

    scheduler: str
    requests: int
    gamma: int
    decision: float
    fastest_tenth: float
    lengths: float
    observe: float
    verified: float


def jagged_table(requests: int, gamma: int) -> CostTable:
    """A step every 128 tokens on a slope; drafting costs about a tenth of a round."""
    tokens = np.arange(1, requests * (gamma + 1) + 1)
    seconds = 0.02 + 1e-5 * tokens + 5e-4 * (tokens // 128)
    rows = tuple(tuple((seconds * factor).tolist()) for factor in (1.0, 1.4))
    return CostTable(tuple(tokens.tolist()), (0, 4096), rows, (1, max(requests, 2)), (0.001, 0.003), noise=0.01)


def measure(name: str, requests: int, gamma: int, rounds: int, seed: int) -> Row:
    """Time `rounds` rounds; the first ones, with no history yet, are left out."""
    scheduler = SCHEDULERS[name](jagged_table(requests, gamma))
    random = np.random.default_rng(seed)
    blocks = random.beta(4, 1, size=(8, requests, gamma)).astype(np.float32)
    times = []
    verified = 0
    for number in range(rounds + 4):
        batch = Batch(np.arange(requests), gamma, context=1000.0 + 4 * number)
        start = time.perf_counter()
        plan = scheduler.plan(batch)
        middle = time.perf_counter()
        lengths = scheduler.lengths(plan, blocks[number % 8])
        end = time.perf_counter()
        scheduler.observe(Outcome(plan, lengths, lengths))
        times.append((end - start, end - middle, time.perf_counter() - end))
        verified += int(lengths.sum())
    decision, last, observe = 1e6 * np.array(times[4:]).T
    share = verified / (len(times) * requests * gamma)
    return Row(
        name,
        requests,
        gamma,
        float(np.median(decision)),
        float(np.quantile(decision, 0.1)),
        float(np.median(last)),
        float(np.median(observe)),
        share,
    )


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(name, *size, options.rounds, options.seed) for size in SIZES for name in SCHEDULERS]
    if options.json:
        print(
            json.dumps({"unit": "microseconds", "rows": [{f: getattr(row, f) for f in Row.__slots__} for row in rows]})
        )
        return
    print("| requests x gamma | scheduler | decision, us | fastest tenth | of it after drafting | observe | verified |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        times = " | ".join(f"{time:.0f}" for time in (row.decision, row.fastest_tenth, row.lengths, row.observe))
        print(f"| {row.requests} x {row.gamma} | {row.scheduler} | {times} | {row.verified:.0%} |")


if __name__ == "__main__":
    main()
