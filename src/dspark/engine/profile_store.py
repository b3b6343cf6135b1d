"""Profiles of earlier runs, each for exactly one machine, pair of models, kernel and version."""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import torch

from dspark.cache_root import cache_root
from dspark.engine.models import Models
from dspark.engine.round_profile import RoundProfile
from dspark.errors import DsparkError
from dspark.nn.compiled.library import decoder_sources
from dspark.nn.compiled.linear import CompiledKernel
from dspark.nn.device import device_name
from dspark.nn.processor import processor_flags, processor_name
from dspark.targets.native import NativeTarget
from dspark.targets.registry import LoadedTarget
from dspark.version import __version__

ROUGH_SECONDS = 24 * 3600.0
"""How long a rough profile does: its noise decides what can be told apart, and another day may be calmer."""


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """Everything that decides what a round costs; hashes are empty where nothing is known. `features` is a digest."""

    processor: str
    features: str
    threads: int
    target_hash: str
    drafter_hash: str
    gamma: int
    kernel: str
    dspark: str
    torch: str

    @classmethod
    def of(cls, models: Models) -> "ProfileKey":
        """The key of `models` on this machine, with as many threads as torch now has."""
        return cls(
            processor=device_name(models.device) or processor_name() or platform.processor() or platform.machine(),
            features=sha256(" ".join(sorted(processor_flags())).encode()).hexdigest()[:12],
            threads=torch.get_num_threads(),
            target_hash=models.target.info.weights_hash,
            drafter_hash=models.drafter_hash() or "",
            gamma=0 if models.drafter is None else models.drafter.info.gamma,
            kernel=kernel_name(models.target),
            dspark=__version__,
            torch=torch.__version__,
        )

    @property
    def known(self) -> bool:
        """Whether the key tells these models from all others; in-memory ones may have no hash."""
        return bool(self.target_hash) and (self.gamma == 0 or bool(self.drafter_hash))

    def subject(self) -> str:
        """The key as one line, as a table carries it."""
        return ", ".join(f"{name} {value or '-'}" for name, value in asdict(self).items())


class ProfileStore:
    """A folder of profiles, one file a key."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = cache_root() / "profiles" if directory is None else directory

    def path(self, key: ProfileKey, rough: bool = False) -> Path:
        """Where the profile of `key` lies, or would lie."""
        return self._directory / f"{sha256(key.subject().encode()).hexdigest()[:16]}{'-rough' * rough}.json"

    def load(self, key: ProfileKey, rough: bool = False) -> RoundProfile | None:
        """The profile of exactly `key`; None if there is none, none that can be read, or a `rough` one of yesterday."""
        if not key.known:
            return None
        path = self.path(key, rough)
        try:
            if rough and time.time() - path.stat().st_mtime > ROUGH_SECONDS:
                return None
            profile = RoundProfile.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, DsparkError):
            return None
        return profile if profile.table.subject == key.subject() else None

    def save(self, profile: RoundProfile, key: ProfileKey, rough: bool = False) -> None:
        """Keep `profile` in place of an older one, unless `key` could be that of other models too.

        Best effort: a cache that cannot be written only costs time.
        """
        if not key.known:
            return
        path = self.path(key, rough)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(profile.to_json(), indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError:
            return


def kernel_name(target: LoadedTarget) -> str:
    """What multiplies the target's matrices; compiled code by its source, which changes between versions, too."""
    if isinstance(target, NativeTarget):
        name = target.kernel.name
        return f"{name} {_compiled_source()}" if isinstance(target.kernel, CompiledKernel) else name
    return f"{type(target).__name__} {target.embedding_weight.dtype}"


def _compiled_source() -> str:
    """12 hex digits of the compiled kernels' source."""
    return sha256(b"".join(decoder_sources().values())).hexdigest()[:12]
