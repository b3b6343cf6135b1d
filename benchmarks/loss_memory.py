"""Peak memory and processor time of one forward and backward pass of the loss, eager against chunked.

    OMP_NUM_THREADS=1 python benchmarks/loss_memory.py [--slots N] [--width D] [--chunk C] [--arm NAME] [--json]

Logits are hidden head^T + latents w2^T as in a DSpark drafter: hidden, latents and w2 get gradients, the head is the
target's and frozen. `dense` compares with the target's whole law (`block_loss`), `sparse` with its 64 likeliest tokens
(`sparse_loss`). Each arm is a fresh process; its memory is the high-water mark of resident memory above what was
resident before the pass (weights and inputs). An arm that would not fit into the memory now available is left out.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dspark.core.factored_logits import FactoredLogits
from dspark.core.losses import LossCoefficients, block_loss, slot_weights
from dspark.training.chunked_loss import CHUNK, chunked_block_loss, chunked_sparse_loss
from dspark.training.objective import SparseTeacher, sparse_loss

GIB = 1 << 30
GAMMA = 7
TOP_K = 64
LOGIT_TENSORS = {"dense eager": 7.5, "sparse eager": 4}
"""Logit-sized tensors that an eager arm holds at once, rounded up: what it is expected to need."""


@dataclass(frozen=True, slots=True)
class Row:
    """`memory_gib` above what was resident before the pass, `resident_gib` with it.

    `loss` and the norm `gradient` of the hidden states' gradient tell that arms compute the same.
    """

    arm: str
    memory_gib: float
    resident_gib: float
    seconds: float
    loss: float
    gradient: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Random factors of the draft (leaves) and of the target, gold tokens and the sparse teacher, for N slots."""

    draft: FactoredLogits
    target: FactoredLogits
    gold: Tensor
    confidence: Tensor
    teacher: SparseTeacher

    @classmethod
    def draw(cls, slots: int, vocabulary: int, width: int, rank: int) -> "Problem":
        """The same for the same sizes."""
        generator = torch.Generator().manual_seed(0)

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator).div_(columns**0.25)

        head = matrix(vocabulary, width)
        latents, w2 = matrix(slots, rank).requires_grad_(), matrix(vocabulary, rank).requires_grad_()
        draft = FactoredLogits(matrix(slots, width).requires_grad_(), head, latents, w2)
        ids = torch.randint(0, vocabulary, (slots, TOP_K), generator=generator)
        p_t = torch.rand(slots, TOP_K, generator=generator).sort(-1, descending=True).values
        teacher = SparseTeacher(ids, 0.95 * p_t / p_t.sum(-1, keepdim=True))
        confidence = torch.randn(slots, generator=generator).requires_grad_()
        return cls(draft, FactoredLogits(matrix(slots, width), head), ids[:, 0].clone(), confidence, teacher)

    def slot_numbers(self) -> Tensor:
        """[N] numbers of the slots within their blocks."""
        return torch.arange(len(self.gold)) % GAMMA


def whole(logits: FactoredLogits) -> Tensor:
    """The logits as the drafter forms them."""
    base = F.linear(logits.hidden, logits.head)
    return base if logits.latents is None or logits.w2 is None else base + F.linear(logits.latents, logits.w2)


def dense_eager(problem: Problem, chunk: int) -> Tensor:
    """The oracle."""
    shape = (-1, GAMMA)
    logits = whole(problem.draft).view(*shape, problem.draft.vocabulary)
    with torch.no_grad():
        target = whole(problem.target).view_as(logits)
    supervised = torch.ones_like(problem.gold, dtype=torch.bool).view(shape)
    return block_loss(logits, target, problem.gold.view(shape), supervised, problem.confidence.view(shape)).total


def dense_chunked(problem: Problem, chunk: int) -> Tensor:
    """The same in chunks."""
    supervised = torch.ones_like(problem.gold, dtype=torch.bool).view(-1, GAMMA)
    coefficients = LossCoefficients()
    weights = slot_weights(supervised, coefficients.decay).flatten()
    return chunked_block_loss(
        problem.draft, problem.target, problem.gold, weights, problem.confidence, coefficients, chunk
    ).total


def sparse_eager(problem: Problem, chunk: int) -> Tensor:
    """What the trainer computes without `loss.vocabulary_chunk`."""
    logits = whole(problem.draft)
    return sparse_loss(logits, problem.confidence, problem.teacher, problem.slot_numbers(), LossCoefficients()).total


def sparse_chunked(problem: Problem, chunk: int) -> Tensor:
    """What the trainer computes with it."""
    return chunked_sparse_loss(
        problem.draft, problem.confidence, problem.teacher, problem.slot_numbers(), LossCoefficients(), chunk
    ).total


ARMS: dict[str, Callable[[Problem, int], Tensor]] = {
    "dense eager": dense_eager,
    "dense chunked": dense_chunked,
    "sparse eager": sparse_eager,
    "sparse chunked": sparse_chunked,
}


def measure(options: argparse.Namespace) -> Row:
    """One arm, in this process."""
    problem = Problem.draw(options.slots, options.vocabulary, options.width, options.rank)
    # Products allocate buffers of their own on first use: not part of what is compared.
    F.linear(problem.draft.hidden[:8].detach(), problem.draft.head[:64])
    before = _resident()
    start = time.process_time()
    loss = ARMS[options.arm](problem, options.chunk)
    loss.backward()
    seconds = time.process_time() - start
    peak = _peak()
    gradient = problem.draft.hidden.grad
    norm = 0.0 if gradient is None else float(gradient.norm())
    return Row(options.arm, (peak - before) / GIB, peak / GIB, seconds, float(loss.detach()), norm)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def available() -> int:
    """Bytes that the machine could still hand out."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def run_arm(arm: str, options: argparse.Namespace) -> Row | None:
    """`arm` in a fresh process; None when it would not fit."""
    expected = LOGIT_TENSORS.get(arm, 1) * options.slots * options.vocabulary * 4
    if expected > 0.9 * available():
        print(f"{arm}: left out, needs about {expected / GIB:.1f} GiB of memory", file=sys.stderr)
        return None
    sizes = [f"--{name}={getattr(options, name)}" for name in ("slots", "vocabulary", "width", "rank", "chunk")]
    command = [sys.executable, __file__, "--json", "--inside", f"--arm={arm}", *sizes]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Row(**json.loads(done.stdout))


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=3584, help="a multiple of 7")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=CHUNK)
    parser.add_argument("--arm", choices=list(ARMS), help="only this one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(asdict(measure(options))))
        return
    rows = (row for arm in ARMS if options.arm in (None, arm) and (row := run_arm(arm, options)) is not None)
    if options.json:
        sizes = {name: getattr(options, name) for name in ("slots", "vocabulary", "width", "rank", "chunk")}
        print(json.dumps(sizes | {"threads": torch.get_num_threads(), "rows": [asdict(row) for row in rows]}))
        return
    print("| loss | memory of the pass, GiB | peak of the process, GiB | CPU seconds | value | gradient |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        numbers = f"{row.memory_gib:.2f} | {row.resident_gib:.2f} | {row.seconds:.1f} | {row.loss:.6f}"
        print(f"| {row.arm} | {numbers} | {row.gradient:.6f} |", flush=True)


if __name__ == "__main__":
    main()
