"""What a drafter costs that never drafts: an engine that rests in every round beside one without a drafter, in turns.

    OMP_NUM_THREADS=2 python benchmarks/resting.py PROMPTS --users 16 64

Both run on the same prompts (`evaluation/bench/turns.py`), so the ratio holds on a machine whose speed drifts.
"""

import argparse
from pathlib import Path

from dspark.engine.engine_options import EngineOptions
from dspark.engine.models import Models, open_models
from dspark.evaluation.bench.arms import ARMS, Arm
from dspark.evaluation.bench.benchmark import Amount, encoded
from dspark.evaluation.bench.engines import ArmEngines
from dspark.evaluation.bench.load import Closed
from dspark.evaluation.bench.run_figures import run_figures
from dspark.evaluation.bench.turns import TurnClock, drive_in_turns
from dspark.evaluation.bench.workload import Workload
from dspark.evaluation.prompts import read_prompt_sets
from dspark.scheduling.registry import SchedulerConfig
from dspark.types import SamplingParams

LONGEST_PROMPT = 400
RESTING = Arm("resting", "resting", "drafter", SchedulerConfig("fixed", length=0, park=False))


def main() -> None:
    """Print a line for each number of users."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--users", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, default=20, help="prompts of each set")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    models = open_models("smollm2-135m")
    prompts = encoded(models.codec, read_prompt_sets([args.prompts], args.limit), LONGEST_PROMPT)
    params = SamplingParams(max_tokens=args.max_tokens)
    print("| users | without drafter | resting | resting over it |\n| --- | --- | --- | --- |")
    for users in args.users:
        load = Closed(users)
        workload = Workload(load, prompts, params, *Amount().of(load))
        plain, resting = _tokens_per_second(models, workload, args.seed)
        print(f"| {users} | {plain:.0f} | {resting:.0f} | {resting / plain:.3f} |", flush=True)


def _tokens_per_second(models: Models, workload: Workload, seed: int) -> list[float]:
    engines = ArmEngines(models, EngineOptions(lookup=None))
    clocks = [TurnClock(), TurnClock()]
    cores = [engines.build(arm, clock) for arm, clock in zip((ARMS["plain"], RESTING), clocks, strict=True)]
    runs = drive_in_turns(list(zip(cores, clocks, strict=True)), workload, seed)
    return [run_figures(run).tokens_per_second for run in runs]


if __name__ == "__main__":
    main()
