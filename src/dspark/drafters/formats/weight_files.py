"""Tensors of a checkpoint directory: one safetensors file or shards with an index. Pickle is never opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.drafters.formats.fields import Fields
from dspark.errors import FormatError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Which file holds which tensor of a directory, and every shape; tensors are read when asked for."""

    directory: Path
    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def open(cls, directory: Path) -> "WeightFiles":
        """Read the headers. Raises FormatError for missing, damaged or inconsistent files, and for pickle."""
        if (directory / SINGLE).is_file():
            shapes = _header(directory / SINGLE)
            return cls(directory, dict.fromkeys(shapes, directory / SINGLE), shapes)
        if (directory / INDEX).is_file():
            return _open_shards(directory)
        raise FormatError(_nothing_found(directory))

    def tensor(self, name: str) -> Tensor:
        """The whole tensor `name` on the CPU, in its stored dtype."""
        with safe_open(self.files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def sample_rows(self, name: str, count: int) -> tuple[list[int], Tensor]:
        """(row numbers, rows) of about `count` evenly spaced rows of a matrix, without reading the rest."""
        total = self.shapes[name][0]
        numbers = list(range(0, total, max(total // count, 1)))
        with safe_open(self.files[name], framework="pt") as file:
            rows: Tensor = file.get_slice(name)[numbers]
        return numbers, rows


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise FormatError(f"{path} is not a readable safetensors file ({error}); fetch or write it again") from error


def _open_shards(directory: Path) -> WeightFiles:
    weight_map = Fields.read(directory / INDEX).object("weight_map").entries
    if not weight_map:
        raise FormatError(f"{directory / INDEX} has no `weight_map`; expected tensor names with their shard files")
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    for shard in sorted(set(map(str, weight_map.values()))):
        if Path(shard).name != shard or not (directory / shard).is_file():
            raise FormatError(f"{directory / INDEX} names the shard {shard!r}, which is not a file in {directory}")
        header = _header(directory / shard)
        shapes |= header
        files |= dict.fromkeys(header, directory / shard)
    wrong = [n for n in set(weight_map) | set(files) if n not in files or weight_map.get(n) != files[n].name]
    if wrong:
        raise FormatError(f"{directory / INDEX} and its shards disagree about {sorted(wrong)[:5]}; fetch them again")
    return WeightFiles(directory, files, shapes)


def _nothing_found(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory} is not a directory; expected a drafter directory with config.json and {SINGLE}"
    pickles = sorted(path.name for pattern in PICKLES for path in directory.glob(pattern))
    if pickles:
        return f"{directory} holds {pickles[0]}, a pickle, which is never opened; expected {SINGLE}, so convert it"
    return f"{directory} has neither {SINGLE} nor {INDEX}"
