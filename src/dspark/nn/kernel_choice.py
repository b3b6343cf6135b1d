"""Which linear kernel suits this processor, and why."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from dspark.errors import ConfigError
from dspark.nn.linear import HalfKernel, LinearKernel, OneDnnKernel, PlainKernel

KernelName = Literal["auto", "plain", "fp16", "onednn", "onednn-bf16"]

_NATIVE_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel and the reason for it, for people to read."""

    kernel: LinearKernel
    reason: str


def processor_flags() -> frozenset[str]:
    """The processor's feature flags as the kernel names them; empty where /proc/cpuinfo does not exist."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def choose_kernel(name: KernelName, dtype: torch.dtype, flags: frozenset[str] | None = None) -> KernelChoice:
    """The kernel called `name`, or with "auto" the fastest exact one for weights of `dtype` on this processor.

    Raises:
        ConfigError: unknown name, or a kernel that this torch or processor cannot run.
    """
    if name == "auto":
        return _automatic(dtype, processor_flags() if flags is None else flags)
    if name not in get_args(KernelName):
        raise ConfigError(f"kernel {name!r} does not exist; choose one of {', '.join(get_args(KernelName))}")
    kernel: LinearKernel
    match name:
        case "plain":
            kernel, runs = PlainKernel(dtype), True
        case "fp16":
            kernel, runs = HalfKernel(), HalfKernel.available()
        case "onednn":
            kernel, runs = OneDnnKernel(torch.float32), OneDnnKernel.available()
        case "onednn-bf16":
            kernel, runs = OneDnnKernel(torch.bfloat16), OneDnnKernel.available(torch.bfloat16)
    if not runs:
        raise ConfigError(f"kernel {name!r} cannot run on this processor with this torch; use kernel 'auto'")
    return KernelChoice(kernel, "asked for by name")


def _automatic(dtype: torch.dtype, flags: frozenset[str]) -> KernelChoice:
    if dtype is torch.bfloat16 and flags & _NATIVE_BF16 and OneDnnKernel.available(torch.bfloat16):
        return KernelChoice(OneDnnKernel(torch.bfloat16), "the processor multiplies bfloat16 natively")
    if dtype is torch.bfloat16 and HalfKernel.available():
        return KernelChoice(HalfKernel(), "no bfloat16 instructions: float16 storage, float32 arithmetic")
    if OneDnnKernel.available():
        return KernelChoice(OneDnnKernel(torch.float32), "float32 in oneDNN's blocked layout")
    return KernelChoice(PlainKernel(torch.float32), "neither FBGEMM nor oneDNN in this torch")
