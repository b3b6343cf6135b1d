"""Tensors of several processes on disk: each writes its shards to safetensors files, any number of processes reads.

torch.distributed.checkpoint does the work, with its safetensors storage: no pickle. Its reader also takes the one file
of a lone process.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dspark.training.world import World

PATTERN = "*.safetensors"


def save_shards(directory: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    """Write this process's shards of `tensors` to `directory`, together with all processes of `world`.

    Every process raises what one of them met, an OSError say: torch's own error is none that `except Exception` sees.
    """
    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=world.group)
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        raise first from error


def load_shards(directory: Path, parameters: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """All tensors in `directory`, each sharded over `world` as the parameter that its name ends with.

    Names are `kind.parameter`. A tensor of no parameter, or of another shape or dtype than its parameter, comes without
    its values, on the meta device.
    """
    reader = HuggingFaceStorageReader(str(directory))
    stored = reader.read_metadata().state_dict_metadata
    found = {name: _room(name, entry, parameters) for name, entry in stored.items()}
    wanted = {name: room for name, room in found.items() if not room.is_meta}
    with warnings.catch_warnings():
        # A lone process is what it is told to expect.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(wanted, storage_reader=reader, process_group=world.group, no_dist=world.group is None)
    return found


def _room(name: str, stored: object, parameters: Mapping[str, Tensor]) -> Tensor:
    assert isinstance(stored, TensorStorageMetadata)
    parameter = parameters.get(name.partition(".")[2])
    if parameter is None or stored.size != parameter.shape or stored.properties.dtype != parameter.dtype:
        return torch.empty(stored.size, dtype=stored.properties.dtype, device="meta")
    return torch.empty_like(parameter, requires_grad=False)
