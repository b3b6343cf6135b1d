"""What padding costs: the backbone's part of a step over the same answers, in padded rows and packed end to end.

    OMP_NUM_THREADS=1 python -m benchmarks.packing [--context N ...] [--repeats N] --json --doc docs/training.md

Rows are padded to each `--context` (`eager_step`); packed documents know no padding, so one size stands for all. Both
arms compute the same hidden states of the same blocks, and the same gradients, which the table's norms show; heads and
losses, the same for both, are left out. Each arm is a fresh process; processor time, median of the repeats; memory
above what was resident before. `--json` writes docs/results/packing.json, or another file; `--doc` puts the table
between the markers of a document.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import eager_step
from benchmarks.markers import rewrite
from benchmarks.step_problem import Document, Sizes, anchors_of, documents, drafter, peak_bytes, resident_bytes
from dspark.drafters.dspark import DSpark
from dspark.nn.processor import processor_name
from dspark.training.batches import gather_batch

PACKED = 0
"""The context size that stands for packing."""

MIB = 1 << 20
SEED = 0


@dataclass(frozen=True, slots=True)
class Row:
    """Processor seconds and memory of a forward and backward pass over rows of `context` tokens (0: packed).

    `slots` are supervised; `output` and `gradient` are the norms of their states and of the first weights' gradient.
    """

    context: int
    seconds: float
    spread: float
    memory_mib: float
    slots: int
    output: float
    gradient: float


def packed_states(
    module: DSpark, found: Sequence[Document], anchors: Sequence[Tensor], gamma: int
) -> Callable[[], Tensor]:
    """Supervised states [N, d], as the trainer computes them."""
    answers, records = [d.answer for d in found], [d.record for d in found]
    batch = gather_batch(answers, records, anchors, gamma, None)
    return lambda: module.training_states(batch.features, batch.token_ids, batch.anchors, batch.lengths, gamma)[
        batch.supervised
    ]


def padded_states(
    module: DSpark, found: Sequence[Document], anchors: Sequence[Tensor], gamma: int, context: int
) -> Callable[[], Tensor]:
    """The same states from rows of `context` tokens."""
    rows = eager_step.pad_rows(found, anchors, gamma, context)
    return lambda: eager_step.block_states(module, rows)[rows.supervised]


def measure(context: int, sizes: Sizes, repeats: int) -> Row:
    """One arm in this process, after a pass that warms up."""
    module, found = drafter(sizes), documents(sizes, SEED)
    anchors = anchors_of(found, sizes, SEED)
    if context == PACKED:
        states = packed_states(module, found, anchors, sizes.gamma)
    else:
        states = padded_states(module, found, anchors, sizes.gamma, context)
    before = resident_bytes()
    seconds = []
    for _ in range(repeats + 1):
        module.zero_grad()
        started = time.process_time()
        hidden = states()
        hidden.square().mean().backward()
        seconds.append(time.process_time() - started)
    gradient = module.fc.weight.grad
    norm = 0.0 if gradient is None else float(gradient.norm())
    timed = seconds[1:]
    memory = (peak_bytes() - before) / MIB
    output = float(hidden.detach().norm())
    return Row(context, statistics.median(timed), max(timed) - min(timed), memory, len(hidden), output, norm)


def run_arm(context: int, options: argparse.Namespace) -> Row:
    """One arm in a fresh process."""
    flags = [f"--{name}={getattr(options, name)}" for name in ("answers", "anchors", "repeats")]
    command = [sys.executable, "-m", "benchmarks.packing", "--inside", f"--context={context}", *flags]
    return Row(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    """Measure, write what is asked for, print a table."""
    options = arguments()
    # The vocabulary plays no part here: a small one leaves memory to what is measured.
    sizes = Sizes(answers=options.answers, anchors=options.anchors, vocabulary=512)
    if options.inside:
        print(json.dumps(asdict(measure(options.context[0], sizes, options.repeats))))
        return
    rows = [run_arm(context, options) for context in (*(options.context or (512, 1024, 2048)), PACKED)]
    if options.json is not None:
        kind = {"processor": processor_name() or platform.machine(), "threads": torch.get_num_threads()}
        settings = kind | {"repeats": options.repeats, "torch": torch.__version__, "sizes": asdict(sizes)}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        figures = {"settings": settings, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(table(rows))
    if options.doc is not None:
        rewrite(options.doc, "packing", table(rows))


def table(rows: Sequence[Row]) -> str:
    """All figures, a row an arm; each arm's time over that of the packed documents."""
    packed = next(row.seconds for row in rows if row.context == PACKED)
    lines = [
        "| context | CPU seconds | spread | x packed | memory, MiB | slots | states | gradient |",
        f"|{' --- |' * 8}",
    ]
    for row in rows:
        name = "packed, whatever the context" if row.context == PACKED else f"rows of {row.context}"
        speed = f"{row.seconds:.2f} | {row.spread:.2f} | {row.seconds / packed:.2f} | {row.memory_mib:.0f}"
        lines.append(f"| {name} | {speed} | {row.slots} | {row.output:.4f} | {row.gradient:.6f} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, action="append", help="default: 512, 1024 and 2048")
    parser.add_argument("--answers", type=int, default=4)
    parser.add_argument("--anchors", type=int, default=64, help="per answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, nargs="?", const=Path("docs/results/packing.json"))
    parser.add_argument("--doc", type=Path, help="rewrite the table between the markers of this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
