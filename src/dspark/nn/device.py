"""Where a model lives."""

import time
from collections.abc import Callable

import torch

from dspark.errors import ConfigError

CPU = torch.device("cpu")


def parse_device(device: torch.device | str) -> torch.device:
    """`cpu`, `cuda` or `cuda:1` as a device that is there.

    Raises:
        ConfigError: no such device, or none that torch sees here.
    """
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r} does not exist; choose cpu, cuda or cuda:1") from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            raise ConfigError(f"device {str(found)!r} is not here: torch {torch.__version__} sees {count} CUDA devices")
    return found


def device_name(device: torch.device) -> str | None:
    """What its maker calls a CUDA device; None for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds, read when everything asked of `device` is done: launches of work return before the work is."""
    if device.type != "cuda":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock
