"""What decoding needs, opened by name: a target, its text codec, and a drafter packed for speed."""

from dataclasses import dataclass
from pathlib import Path

import torch

from dspark.data.text import TextCodec
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.registry import load_drafter
from dspark.drafters.shipped import drafter_directory
from dspark.engine.drafter_hash import drafter_hash
from dspark.errors import FormatError
from dspark.nn.compiled.linear import CompiledKernel, Packing
from dspark.nn.kernel_choice import INT8
from dspark.targets.native import NativeTarget
from dspark.targets.registry import DtypeName, LoadedTarget, load_target, load_tokenizer


@dataclass(frozen=True, slots=True)
class Models:
    """A target, its codec, and its drafter with the directory it came from; both None to decode plainly."""

    target: LoadedTarget
    codec: TextCodec
    drafter: DrafterModule | None
    drafter_directory: Path | None

    def speculative(self) -> tuple[DrafterModule, Path]:
        """The drafter and its directory. Raises FormatError if there is none."""
        if self.drafter is None or self.drafter_directory is None:
            name = self.target.info.name
            raise FormatError(f"there is no drafter for {name}; train one with `dspark train`, or name one (--drafter)")
        return self.drafter, self.drafter_directory

    def beside(self, directory: str | Path) -> "Models":
        """The same target with the drafter in `directory`. Raises as `load_drafter` does."""
        return Models(self.target, self.codec, _drafter(directory, self.target), Path(directory))

    @property
    def device(self) -> torch.device:
        """Where the target lives, and the drafter with it."""
        return self.target.embedding_weight.device

    def drafter_hash(self) -> str | None:
        """sha256 of the drafter's weight files, None without a drafter."""
        return None if self.drafter_directory is None else drafter_hash(self.drafter_directory)


def open_models(
    target: str | Path,
    drafter: str | Path | None = None,
    dtype: DtypeName = "bf16",
    device: torch.device | str = "cpu",
) -> Models:
    """The target called `target` with the drafter in directory `drafter`: the shipped one for None, `none` for none.

    Both live on `device`.

    Raises as `load_target` and `load_drafter` do.
    """
    loaded = load_target(target, dtype, device=device)
    codec = TextCodec(load_tokenizer(target))
    directory = drafter_directory(drafter, loaded.info.name)
    return Models(loaded, codec, None if directory is None else _drafter(directory, loaded), directory)


def _drafter(directory: str | Path, target: LoadedTarget) -> DrafterModule:
    """The drafter in `directory`; in int8, half as much to read, where its target multiplies tiles.

    Drafts are drawn from the law of the rounded drafter and judged by it, so texts keep the law of the target.
    """
    kernel = target.kernel if isinstance(target, NativeTarget) else None
    tiles = isinstance(kernel, CompiledKernel) and kernel.packing.tiles
    return load_drafter(directory, target, INT8 if tiles and CompiledKernel.available(Packing.BYTES) else "auto")
