"""The processes that train one drafter together. A process alone never touches `torch.distributed`.

Rank r of R trains on every R-th part of a step's answers; sums over ranks make the figures of the whole step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class World:
    """This process (`rank`) among the `size` processes of `group`; a lone process has no group."""

    rank: int = 0
    size: int = 1
    group: ProcessGroup | None = None

    @classmethod
    def of(cls, group: ProcessGroup) -> "World":
        """The world of a process group that this process belongs to."""
        return cls(group.rank(), group.size(), group)

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks to people."""
        return self.rank == 0

    def mesh(self) -> DeviceMesh:
        """The group as a one-dimensional mesh; ConfigError for a lone process, which has nobody to shard with."""
        if self.group is None:
            raise ConfigError("a process alone has no mesh; start several with torchrun")
        return DeviceMesh.from_group(self.group, "cpu")

    def sum(self, values: Tensor) -> Tensor:
        """The sum of every process's `values`, the same bits on each."""
        if self.group is None:
            return values
        total = values.clone()
        torch.distributed.all_reduce(total, group=self.group)
        return total

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag: whether it is raised anywhere. Clocks and signals differ between processes, decisions must not."""
        if self.group is None:
            return flags
        return tuple(bool(count) for count in self.sum(torch.tensor(flags, dtype=torch.int32)))

    def wait(self) -> None:
        """Return when every process has come this far."""
        if self.group is not None:
            torch.distributed.barrier(self.group)

    def parts(self, micro_batches: int) -> range:
        """This process's parts of a step that is divided in `size * micro_batches` parts."""
        return range(self.rank, self.size * micro_batches, self.size)


ALONE = World()
"""The world of a lone process."""
