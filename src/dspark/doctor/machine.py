"""Facts of the machine: processor and accelerators. Everything is read, nothing is changed."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from dspark.nn.processor import processor_flags, processor_name

_X86_FEATURES = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
_ARM_FEATURES = ("asimd", "bf16", "i8mm", "sve", "sve2", "sme")
BF16_FEATURES = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class Processor:
    """The CPU as this process may use it: `cores` it is allowed, `threads` that torch runs, load of the last minute."""

    model: str
    features: tuple[str, ...]
    torch_capability: str
    cores: int
    threads: int
    omp_num_threads: str | None
    load: float | None

    @property
    def has_bf16(self) -> bool:
        """Whether bfloat16 products have instructions of their own; otherwise they are emulated."""
        return bool(BF16_FEATURES.intersection(self.features))


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator that torch can use; `memory` in bytes."""

    name: str
    memory: int


def processor() -> Processor:
    """The CPU of this process."""
    return Processor(
        model=processor_name() or platform.processor() or platform.machine(),
        features=cpu_features(processor_flags()),
        torch_capability=torch.backends.cpu.get_cpu_capability(),
        cores=allowed_cores(),
        threads=torch.get_num_threads(),
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def cpu_features(flags: frozenset[str]) -> tuple[str, ...]:
    """The flags that matter here, in order of age."""
    return tuple(name for name in (*_X86_FEATURES, *_ARM_FEATURES) if name in flags)


def allowed_cores() -> int:
    """Cores that this process may use: its affinity, cut by a container's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        return max(1, min(affinity, int(quota) // int(period)))
    return affinity


def devices() -> tuple[Device, ...]:
    """CUDA devices that torch sees."""
    if not torch.cuda.is_available():
        return ()
    properties = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return tuple(Device(device.name, device.total_memory) for device in properties)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
