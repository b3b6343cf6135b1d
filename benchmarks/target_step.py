"""Milliseconds of one target step by linear kernel, context and number of new tokens of one request.

    python benchmarks/target_step.py [--threads N] [--kernels compiled,fp16,onednn] [--contexts 256] [--rows 1,8,64]
        [--cpu-time]

Medians over repeated steps, the LM head on every row included. `--cpu-time` counts this process's processor time
instead of the clock's, the only steady measure with one thread on a machine that does other work.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from dspark.errors import ConfigError
from dspark.targets.registry import load_target
from dspark.types import Target

TARGET = "smollm2-135m"
DTYPES = {
    "compiled": torch.bfloat16,
    "compiled-bf16": torch.bfloat16,
    "compiled-int8": torch.bfloat16,
    "fp16": torch.bfloat16,
    "onednn-bf16": torch.bfloat16,
}
TAPS = (1, 8, 15, 22, 28)
BUDGET_SECONDS = 3.0


def step_milliseconds(target: Target, context: int, rows: int, clock: Callable[[], float]) -> float:
    """Median time of appending `rows` tokens to a context, logits and taps included."""
    cache = target.new_cache(context + rows)
    target.forward(torch.arange(1000, 1000 + context), cache)
    tokens = torch.arange(500, 500 + rows)
    times: list[float] = []
    stop = time.perf_counter() + BUDGET_SECONDS
    while len(times) < 5 or time.perf_counter() < stop:
        cache.rollback(context)
        start = clock()
        target.logits(target.forward(tokens, cache, TAPS).last_hidden)
        times.append(clock() - start)
    return 1000 * statistics.median(times[1:])


def whole_numbers(text: str) -> tuple[int, ...]:
    """The numbers of "1,8,64"."""
    return tuple(int(number) for number in text.split(","))


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kernels", default="plain,onednn,fp16,onednn-bf16,compiled")
    parser.add_argument("--contexts", type=whole_numbers, default=(256,))
    parser.add_argument("--rows", type=whole_numbers, default=(1, 2, 3, 4, 8, 16, 64))
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    table: dict[str, dict[int, dict[int, float]]] = {}
    for name in options.kernels.split(","):
        try:
            target = load_target(TARGET, DTYPES.get(name, torch.float32), kernel=name)
        except ConfigError as error:
            print(error, file=sys.stderr)
            continue
        table[name] = {
            context: {rows: round(step_milliseconds(target, context, rows, clock), 1) for rows in options.rows}
            for context in options.contexts
        }
        print(name, table[name], file=sys.stderr)
    print(json.dumps({"threads": options.threads, "cpu_time": options.cpu_time, "milliseconds": table}))


if __name__ == "__main__":
    main()
