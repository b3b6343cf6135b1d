"""Blocks of several widths, and drafters in bf16 and int8, side by side: what a slot costs, and what it brings.

    OMP_NUM_THREADS=2 python benchmarks/draft_widths.py PROMPTS --users 1 4 16 --widths 1 2 3 7

Every round drafts and verifies all slots of its blocks. Engines take turns (`evaluation/bench/turns.py`) on the same
prompts, so their ratios hold on a machine whose speed drifts. `first` and `second` are the shares of the rounds in
which these drafts survived; draft ms is the median time that a round which reads no prompt spends on drafting.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

from dspark.core.tau import RoundTally
from dspark.drafters.registry import load_drafter
from dspark.engine.engine_options import EngineOptions
from dspark.engine.models import Models, open_models
from dspark.evaluation.bench.arms import Arm
from dspark.evaluation.bench.benchmark import Amount, encoded
from dspark.evaluation.bench.engines import ArmEngines
from dspark.evaluation.bench.load import Closed
from dspark.evaluation.bench.run_figures import run_figures
from dspark.evaluation.bench.trace import Run
from dspark.evaluation.bench.turns import TurnClock, drive_in_turns
from dspark.evaluation.bench.workload import Workload
from dspark.evaluation.prompts import read_prompt_sets
from dspark.nn.kernel_choice import KernelName
from dspark.scheduling.registry import SchedulerConfig
from dspark.types import SamplingParams

KERNELS: dict[str, KernelName] = {"bf16": "compiled-bf16", "int8": "compiled-int8"}
LONGEST_PROMPT = 400


def main() -> None:
    """Print a table for each number of users."""
    args = _arguments()
    models = open_models("smollm2-135m")
    prompts = encoded(models.codec, read_prompt_sets([args.prompts], args.limit), LONGEST_PROMPT)
    params = SamplingParams(max_tokens=args.max_tokens)
    for users in args.users:
        load = Closed(users)
        workload = Workload(load, prompts, params, *Amount().of(load))
        print(f"\n{users} users\n\n| drafter | slots | tokens/s | tau | first | second | draft ms |\n|{' --- |' * 7}")
        for name, width, run in _runs(models, workload, args):
            print(_row(name, width, run))


def _runs(models: Models, workload: Workload, args: argparse.Namespace) -> list[tuple[str, int, Run]]:
    """All kernels and widths, in turns."""
    packed = {name: _packed(models, KERNELS[name]) for name in args.kernels}
    options = EngineOptions(lookup=None)
    settings = [(name, width, TurnClock()) for name in packed for width in args.widths]
    cores = [ArmEngines(packed[name], options).build(_fixed(width), clock) for name, width, clock in settings]
    clocks = [clock for *_, clock in settings]
    runs = drive_in_turns(list(zip(cores, clocks, strict=True)), workload, args.seed)
    return [(name, width, run) for (name, width, _), run in zip(settings, runs, strict=True)]


def _packed(models: Models, kernel: KernelName) -> Models:
    _, directory = models.speculative()
    return replace(models, drafter=load_drafter(directory, models.target, kernel))


def _fixed(width: int) -> Arm:
    return Arm(str(width), str(width), "drafter", SchedulerConfig("fixed", park=False), drafts=width)


def _row(name: str, width: int, run: Run) -> str:
    figures = run_figures(run)
    survived = RoundTally.merged(one.tally for one in run.measured if one.tally is not None).acceptance_by_position()
    pure = [step.stats.draft_seconds for step in run.steps if not step.stats.prefill_tokens]
    second = f"{survived[1]:.3f}" if len(survived) > 1 else ""
    return (
        f"| {name} | {width} | {figures.tokens_per_second:.1f} | {figures.tau:.3f} | {survived[0]:.3f} | {second} | "
        f"{1000 * statistics.median(pure):.2f} |"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 3, 7])
    parser.add_argument("--kernels", nargs="+", choices=sorted(KERNELS), default=["bf16", "int8"])
    parser.add_argument("--limit", type=int, default=20, help="prompts of each set")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
