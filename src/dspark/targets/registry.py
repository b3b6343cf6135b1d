"""Targets and tokenizers by name: `smollm2-135m`, a directory, a .gguf file, or org/name of a hub."""

import importlib.util
import re
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from dspark.errors import ConfigError, DependencyError, FormatError
from dspark.nn.device import CPU, parse_device
from dspark.nn.kernel_choice import INT8, KernelName, check_int8
from dspark.targets import embedded
from dspark.targets.checkpoint import build_target, read_config, read_directory, read_gguf
from dspark.targets.config import DecoderConfig, refusal
from dspark.targets.gguf_reader import GGUFFile
from dspark.targets.gguf_tokenizer import read_tokenizer
from dspark.targets.hub import download
from dspark.targets.tokenizer import Tokenizer
from dspark.types import Target

DtypeName = Literal["bf16", "fp32", "int8"]
"""Names of what weights are kept in. int8 rounds matrices: the rounded model is then the target."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class LoadedTarget(Target, Protocol):
    """A target out of files: it lends a drafter its embedding and LM head, each [V, d]."""

    @property
    def embedding_weight(self) -> Tensor: ...
    @property
    def lm_head_weight(self) -> Tensor: ...


def load_target(
    name_or_path: str | Path,
    dtype: torch.dtype | DtypeName = "bf16",
    kernel: KernelName = "auto",
    device: torch.device | str = "cpu",
) -> LoadedTarget:
    """The target called `name_or_path` on `device`, its weights rounded to `dtype`; a kernel may compute wider.

    "int8" is bfloat16 with the kernel `compiled-int8`.

    A model that the native decoder does not run goes through transformers, if that is installed.

    Raises:
        FormatError: nothing is there, or it cannot be read.
        DependencyError: it needs a package that is not installed.
        ConfigError: a model, dtype, kernel or device that cannot run.
    """
    if dtype == "int8":
        check_int8()
        dtype, kernel = "bf16", INT8
    precision, place = parse_dtype(dtype), parse_device(device)
    if name_or_path == embedded.NAME:
        return embedded.load_smollm2(precision, kernel=kernel, device=place)
    path = resolve(name_or_path)
    if path.is_file():
        return build_target(read_gguf(path, precision), precision, kernel, place)
    reason = refusal(read_config(path))
    if reason is None:
        return build_target(read_directory(path, _name(name_or_path)), precision, kernel, place)
    if kernel == INT8:
        raise ConfigError(f"{_name(name_or_path)}: {reason}; only what runs natively has int8 weights, use dtype bf16")
    if place != CPU:
        raise ConfigError(f"{_name(name_or_path)}: {reason}; through transformers it runs on the CPU only, not {place}")
    return _load_adapted(path, _name(name_or_path), precision, reason)


def load_config(name_or_path: str | Path) -> DecoderConfig:
    """The shape of the target called `name_or_path`, without its weights.

    Raises as `load_target` does; ConfigError where only transformers runs it.
    """
    if name_or_path == embedded.NAME:
        return DecoderConfig.parse(read_config(embedded.converted_directory()))
    path = resolve(name_or_path)
    return DecoderConfig.parse(GGUFFile(path).config() if path.is_file() else read_config(path))


def load_tokenizer(name_or_path: str | Path) -> Tokenizer:
    """The tokenizer of the target called `name_or_path`. Raises as `load_target` does."""
    if name_or_path == embedded.NAME:
        return Tokenizer.from_directory(embedded.converted_directory())
    path = resolve(name_or_path)
    return read_tokenizer(GGUFFile(path)) if path.is_file() else Tokenizer.from_directory(path)


def parse_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """float32 or bfloat16, also by the names fp32 and bf16; ConfigError for anything else."""
    if dtype in (torch.float32, "fp32"):
        return torch.float32
    if dtype in (torch.bfloat16, "bf16"):
        return torch.bfloat16
    raise ConfigError(f"dtype {dtype!r} is not supported; choose bf16, fp32 or, for a model to decode with, int8")


def resolve(name_or_path: str | Path) -> Path:
    """The directory or .gguf file meant, downloaded first if it is an org/name that no local path has."""
    try:
        path = Path(name_or_path).expanduser()
        found = path.is_dir() or (path.is_file() and path.suffix == ".gguf")
    except (OSError, RuntimeError) as error:  # no name of a file, or the home of a user who does not exist
        raise FormatError(f"target {str(name_or_path)!r} cannot be opened: {error}") from error
    if found:
        return path
    if path.is_file():
        raise FormatError(f"{path} is a file, but not .gguf; name a .gguf file or the model's directory")
    if _HUB_NAME.fullmatch(str(name_or_path)) and path.suffix != ".gguf":
        return download(str(name_or_path))
    raise FormatError(
        f"target {str(name_or_path)!r} not found; "
        f"expected {embedded.NAME!r}, a model directory, a .gguf file or org/name"
    )


def _name(name_or_path: str | Path) -> str:
    """Hub names stay whole; local models are called as their directory, so that moving them changes nothing."""
    path = Path(name_or_path).expanduser()
    return path.resolve().name if path.exists() else str(name_or_path)


def _load_adapted(path: Path, name: str, dtype: torch.dtype, reason: str) -> LoadedTarget:
    if importlib.util.find_spec("transformers") is None:
        raise DependencyError(f"{name}: {reason}; transformers may run it: pip install 'dspark[hf]'")
    from dspark.targets.transformers_adapter import load_transformers  # brings half of torch.distributed: over a second

    return load_transformers(path, name, dtype)
