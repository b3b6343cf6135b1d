"""Supervised draft positions per second of a training step: ours against a straightforward eager one.

    OMP_NUM_THREADS=1 python -m benchmarks.training_throughput --processes 1,2 --json --doc docs/training.md

All arms train the same made-up answers, anchors and drafter shape (`step_problem`), features at hand: the target does
not run. `eager` is the yardstick (`eager_step`): padded rows, dense mask, laws of the whole vocabulary, float32.
`packed` is the trainer's step over the same vocabulary, `recipe` over the recipe's 8,192 tokens, `bf16` under autocast,
`chunked` with logits in vocabulary chunks.

Every arm runs `--repeats` times in fresh processes, arms taking turns, so that drift of the machine hits all; memory
is a process's high-water mark. The rate of a repeat is the median of its steps' rates; told are the median and the
range of the repeats, and the same of the quotient with the yardstick in the same repeat. The rate per second of
processor time of one process stands beside it, which other work on the machine disturbs less. Several processes of ours
train one drafter together (gloo, sharded, each on answers of its own); of the yardstick they are independent trainings,
for it knows no other. Their rates are added.

`--json` writes docs/results/training_throughput.json, or another file; `--doc` puts the table between the markers of a
document.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import eager_step
from benchmarks.markers import rewrite
from benchmarks.step_problem import Sizes, anchors_of, documents, drafter, peak_bytes, resident_bytes
from dspark.core.losses import LossCoefficients
from dspark.nn.processor import processor_name
from dspark.training.batches import Batch, gather_batch
from dspark.training.forced_loss import Objective
from dspark.training.optimiser import build_optimiser
from dspark.training.placement import joined
from dspark.training.recipe import OptimiserSection
from dspark.training.replica import replica_of
from dspark.training.step import train_step
from dspark.training.world import ALONE, World

YARDSTICK = "eager"
DRAFT_VOCABULARY = 8192
CHUNK = 4096
MIB = 1 << 20

Step = Callable[[], int]
"""Trains once; the number of supervised slots."""


@dataclass(frozen=True, slots=True)
class Arm:
    """How a step of ours is computed."""

    pruned: bool = False
    precision: torch.dtype = torch.float32
    chunk: int | None = None

    def steps(self, sizes: Sizes, count: int, world: World = ALONE) -> list[Step]:
        """`count` steps over batches of their own, which no other process of `world` has."""
        sizes = replace(sizes, draft_vocabulary=min(DRAFT_VOCABULARY, sizes.vocabulary) if self.pruned else None)
        module = drafter(sizes)
        replica = replica_of(module, world)  # before the optimiser, whose parameters it may shard
        optimiser = build_optimiser(OptimiserSection(total_steps=count), module)
        objective = Objective(LossCoefficients(), self.chunk, self.precision)
        batches = [self._batch(sizes, step * world.size + world.rank) for step in range(count)]

        def trained(batch: Batch) -> int:
            train_step(replica, optimiser, [batch], objective, 1e-3, 1.0, world=world)
            return len(batch.slots)

        return [lambda batch=batch: trained(batch) for batch in batches]

    @staticmethod
    def _batch(sizes: Sizes, step: int) -> Batch:
        found = documents(sizes, step)
        answers, records = [d.answer for d in found], [d.record for d in found]
        return gather_batch(answers, records, anchors_of(found, sizes, step), sizes.gamma, None)


ARMS = {
    "packed": Arm(),
    "packed chunked": Arm(chunk=CHUNK),
    "packed bf16": Arm(precision=torch.bfloat16),
    "recipe": Arm(pruned=True),
    "recipe bf16": Arm(pruned=True, precision=torch.bfloat16),
}


def eager_steps(sizes: Sizes, count: int) -> list[Step]:
    """The yardstick's."""
    module = drafter(replace(sizes, draft_vocabulary=None))
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-3)
    found = [documents(sizes, step) for step in range(count)]
    batches = [
        eager_step.pad_rows(answers, anchors_of(answers, sizes, step), sizes.gamma)
        for step, answers in enumerate(found)
    ]

    def trained(rows: eager_step.Rows) -> int:
        eager_step.train_step(module, optimiser, rows)
        return int(rows.supervised.sum())

    return [lambda rows=rows: trained(rows) for rows in batches]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one process saw: positions, seconds and processor seconds of every step but the first; memory in bytes."""

    positions: list[int]
    seconds: list[float]
    processor_seconds: list[float]
    before: int
    peak: int

    @property
    def rates(self) -> list[float]:
        """Positions per second of each step."""
        return [n / s for n, s in zip(self.positions, self.seconds, strict=True)]


def measure(arm: str, sizes: Sizes, count: int, world: World) -> Measured:
    """`count` steps of one arm in this process, after one that warms up."""
    steps = eager_steps(sizes, count + 1) if arm == YARDSTICK else ARMS[arm].steps(sizes, count + 1, world)
    before = resident_bytes()
    steps[0]()
    print("ready", flush=True)
    sys.stdin.readline()
    positions, seconds, processor_seconds = [], [], []
    for step in steps[1:]:
        started, used = time.perf_counter(), time.process_time()
        positions.append(step())
        seconds.append(time.perf_counter() - started)
        processor_seconds.append(time.process_time() - used)
    return Measured(positions, seconds, processor_seconds, before, peak_bytes())


def environments(world: int, processes: int) -> list[dict[str, str]]:
    """What `torchrun` would tell each of `processes`, if `world` of them belong together."""
    if world == 1:
        return [dict(os.environ)] * processes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def run_arm(arm: str, processes: int, arguments: Sequence[str]) -> list[Measured]:
    """`arm` in fresh processes, which start their measured steps together."""
    command = [sys.executable, "-m", "benchmarks.training_throughput", "--inside", "--arm", arm, *arguments]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for environment in environments(1 if arm == YARDSTICK else processes, processes)
    ]
    try:
        for process in running:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit(f"{arm}: a process ended early, perhaps for want of memory; try fewer --anchors")
        return [Measured(**json.loads(process.communicate("go\n")[0])) for process in _released(running)]
    finally:
        for process in running:
            process.kill()


def _released(running: Sequence["subprocess.Popen[str]"]) -> Sequence["subprocess.Popen[str]"]:
    """The processes, all told to go before the first is waited for."""
    for process in running[1:]:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return running


@dataclass(frozen=True, slots=True)
class Repeat:
    """One run of an arm: what each of its processes saw."""

    measured: tuple[Measured, ...]

    @property
    def rate(self) -> float:
        """Positions per second of all processes together, median of the steps."""
        return statistics.median(sum(together) for together in zip(*(one.rates for one in self.measured), strict=True))

    @property
    def processor_rate(self) -> float:
        """Positions per second of processor time of one process, median of all steps."""
        return statistics.median(
            n / s for one in self.measured for n, s in zip(one.positions, one.processor_seconds, strict=True)
        )


Runs = Mapping[tuple[str, int], Sequence[Repeat]]
"""Repeats by arm and number of processes."""


def row(arm: str, processes: int, runs: Runs) -> dict[str, Any]:
    """The figures of one arm."""
    repeats = runs[arm, processes]
    rates = [repeat.rate for repeat in repeats]
    everyone = [one for repeat in repeats for one in repeat.measured]
    return {
        "arm": arm,
        "processes": processes,
        "positions_per_second": statistics.median(rates),
        "range": [min(rates), max(rates)],
        "repeats": len(rates),
        "steps": len(everyone[0].seconds),
        "times_eager": quotient(runs, (arm, processes), (YARDSTICK, processes)),
        "times_one_process": quotient(runs, (arm, processes), (arm, 1)),
        "positions_per_processor_second": statistics.median(repeat.processor_rate for repeat in repeats),
        "seconds_per_step": statistics.median(s for one in everyone for s in one.seconds),
        "peak_mib": max(one.peak for one in everyone) / MIB,
        "step_mib": max(one.peak - one.before for one in everyone) / MIB,
    }


def quotient(runs: Runs, own: tuple[str, int], other: tuple[str, int]) -> dict[str, Any] | None:
    """Median and range of the quotient of two arms' rates in the same repeat; None where the other did not run."""
    if other not in runs:
        return None
    found = [a.rate / b.rate for a, b in zip(runs[own], runs[other], strict=True)]
    return {"median": statistics.median(found), "range": [min(found), max(found)]}


def run_all(arms: Sequence[str], counts: Sequence[int], repeats: int, arguments: Sequence[str]) -> Runs:
    """Every arm with every number of processes, in turns."""
    runs: dict[tuple[str, int], list[Repeat]] = {(arm, count): [] for count in counts for arm in arms}
    for number in range(repeats):
        for (arm, count), found in runs.items():
            found.append(Repeat(tuple(run_arm(arm, count, arguments))))
            print(f"repeat {number + 1}: {arm}, {count} processes: {found[-1].rate:.0f}/s", file=sys.stderr, flush=True)
    return runs


def main() -> None:
    """Measure, write what is asked for, print a table."""
    options = arguments()
    sizes = Sizes(answers=options.answers, anchors=options.anchors)
    if options.inside:
        with joined(0) as placement:
            print(json.dumps(asdict(measure(options.arm[0], sizes, options.steps, placement.world))))
        return
    inside = [f"--{name}={getattr(options, name)}" for name in ("steps", "answers", "anchors")]
    runs = run_all(options.arm or [YARDSTICK, *ARMS], options.processes, options.repeats, inside)
    rows = [row(arm, count, runs) for arm, count in runs]
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"settings": settings(sizes), "rows": rows}, indent=1) + "\n")
    print(table(rows))
    if options.doc is not None:
        rewrite(options.doc, "training throughput", table(rows))


def settings(sizes: Sizes) -> dict[str, Any]:
    """What the figures were made with."""
    machine = {"processor": processor_name() or platform.machine(), "cores": len(os.sched_getaffinity(0))}
    kind = {"processes_are": "gloo ranks; of the yardstick independent", "torch": torch.__version__}
    return machine | {"threads": torch.get_num_threads()} | kind | {"sizes": asdict(sizes)}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """All figures, a row an arm."""
    lines = [
        "| arm | processes | positions/s (range) | x eager (range) | x one process | per CPU s | s a step | peak, MiB "
        "| of the step, MiB |",
        f"|{' --- |' * 9}",
    ]
    for one in rows:
        low, high = one["range"]
        rate = f"{one['positions_per_second']:.0f} ({low:.0f} to {high:.0f})"
        scaled = "" if one["processes"] == 1 or one["times_one_process"] is None else told(one["times_one_process"])
        times = "" if one["arm"] == YARDSTICK or one["times_eager"] is None else told(one["times_eager"])
        speed = f"{one['positions_per_processor_second']:.0f} | {one['seconds_per_step']:.2f}"
        memory = f"{one['peak_mib']:.0f} | {one['step_mib']:.0f}"
        lines.append(f"| {one['arm']} | {one['processes']} | {rate} | {times} | {scaled} | {speed} | {memory} |")
    return "\n".join(lines)


def told(quotient: Mapping[str, Any]) -> str:
    """Median and range."""
    low, high = quotient["range"]
    return f"{quotient['median']:.2f} ({low:.2f} to {high:.2f})"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="measured steps of an arm in a repeat, at least 1")
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes of every arm")
    parser.add_argument("--answers", type=int, default=Sizes().answers)
    parser.add_argument("--anchors", type=int, default=Sizes().anchors, help="per answer")
    parser.add_argument("--processes", type=counts, default=(1,), help="numbers of processes, as in 1,2")
    parser.add_argument("--arm", action="append", choices=[YARDSTICK, *ARMS], help="only this one; may be given again")
    parser.add_argument("--json", type=Path, nargs="?", const=Path("docs/results/training_throughput.json"))
    parser.add_argument("--doc", type=Path, help="rewrite the table between the markers of this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def counts(text: str) -> tuple[int, ...]:
    """Numbers of processes, in ascending order."""
    return tuple(sorted({int(count) for count in text.split(",")}))


if __name__ == "__main__":
    main()
