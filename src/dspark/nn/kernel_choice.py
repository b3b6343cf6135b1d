"""Which linear kernel suits this processor, and why."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from dspark.errors import ConfigError, DependencyError
from dspark.nn.compiled.library import decoder_library
from dspark.nn.compiled.linear import PACKINGS, CompiledKernel, Packing
from dspark.nn.device import CPU
from dspark.nn.linear import HalfKernel, LinearKernel, OneDnnKernel, PlainKernel
from dspark.nn.processor import processor_flags

KernelName = Literal["auto", "plain", "fp16", "onednn", "onednn-bf16", "compiled", "compiled-bf16", "compiled-int8"]

INT8: Literal["compiled-int8"] = "compiled-int8"
"""The kernel that rounds weights to int8."""

_NATIVE_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel and the reason for it, for people to read."""

    kernel: LinearKernel
    reason: str


def choose_kernel(
    name: KernelName, dtype: torch.dtype, flags: frozenset[str] | None = None, device: torch.device = CPU
) -> KernelChoice:
    """The kernel called `name`, or with "auto" the fastest exact one for weights of `dtype` on this processor.

    Another `device` than the CPU has torch's own product only.

    Raises:
        ConfigError: unknown name, or a kernel that this torch, processor or device cannot run.
    """
    if device != CPU and name in ("auto", "plain"):
        return KernelChoice(PlainKernel(dtype), f"torch's own product in {dtype} on {device}")
    if device != CPU and name in get_args(KernelName):
        raise ConfigError(f"kernel {name!r} runs on processors only, not on {device}; use kernel 'auto'")
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
        case compiled:
            kernel = CompiledKernel(PACKINGS[compiled])
            runs = CompiledKernel.available(kernel.packing)
    if not runs:
        raise ConfigError(f"kernel {name!r} cannot run on this processor with this torch; use kernel 'auto'")
    return KernelChoice(kernel, "asked for by name")


def check_int8() -> None:
    """Raises ConfigError where no kernel multiplies int8, and why."""
    try:
        decoder_library()
    except DependencyError as error:
        raise ConfigError(f"int8 weights need compiled kernels, and {error}; use dtype bf16") from error
    if not CompiledKernel.available(Packing.BYTES):
        raise ConfigError("int8 weights need a matrix unit (AMX), and there is none here; use dtype bf16")


def resolve_precision(
    precision: Literal["fp32", "bf16", "auto"], flags: frozenset[str] | None = None
) -> Literal["fp32", "bf16"]:
    """What products of a training run in: `auto` is bf16 where the processor multiplies it by itself, else fp32."""
    if precision != "auto":
        return precision
    flags = processor_flags() if flags is None else flags
    return "bf16" if flags & _NATIVE_BF16 else "fp32"


def sequence_kernel(precision: Literal["fp32", "bf16"], flags: frozenset[str] | None = None) -> KernelName:
    """The kernel that runs whole sequences fastest: many rows at once are bound by arithmetic, not by reads."""
    flags = processor_flags() if flags is None else flags
    if precision == "fp32" or not flags & _NATIVE_BF16:
        return "auto"
    if "amx_bf16" in flags and CompiledKernel.available(Packing.TILES):
        return "compiled-bf16"
    return "onednn-bf16" if OneDnnKernel.available(torch.bfloat16) else "auto"


def _automatic(dtype: torch.dtype, flags: frozenset[str]) -> KernelChoice:
    if dtype is not torch.bfloat16:
        return _float32()
    try:
        decoder_library()
    except DependencyError as error:
        return _uncompiled(str(error), flags)
    if "amx_bf16" in flags and CompiledKernel.available(Packing.TILES):
        return KernelChoice(CompiledKernel(Packing.TILES), "bfloat16 products on the processor's matrix unit, compiled")
    return KernelChoice(CompiledKernel(), "bfloat16 storage, float32 arithmetic, compiled for this processor")


def _uncompiled(because: str, flags: frozenset[str]) -> KernelChoice:
    if flags & _NATIVE_BF16 and OneDnnKernel.available(torch.bfloat16):
        return KernelChoice(OneDnnKernel(torch.bfloat16), f"native bfloat16 products, because {because}")
    if HalfKernel.available():
        return KernelChoice(HalfKernel(), f"float16 storage, float32 arithmetic, because {because}")
    return _float32()


def _float32() -> KernelChoice:
    if OneDnnKernel.available():
        return KernelChoice(OneDnnKernel(torch.float32), "float32 in oneDNN's blocked layout")
    return KernelChoice(PlainKernel(torch.float32), "neither FBGEMM nor oneDNN in this torch")
