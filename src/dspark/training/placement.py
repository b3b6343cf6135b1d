"""Which processes of a job train the drafter and which run the target, and how they meet.

`torchrun` starts the processes and says by environment variables how many there are. Ranks 0 to D - 1 train; with
`target_ranks` T > 0 the last T run the target for them, each for every T-th of the trainers.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from dspark.errors import ConfigError
from dspark.training.hidden_states import StateServer, header_shape
from dspark.training.world import ALONE, World


@dataclass(slots=True)
class PeerChannel:
    """A `Channel` to the process of global rank `peer`; counts the bytes that travel."""

    peer: int
    sent: int = 0
    received: int = 0

    def send(self, tensor: Tensor) -> None:
        """Hand over `tensor`; its shape and dtype are agreed on."""
        # Bytes travel, because backends do not know every dtype.
        data = tensor.contiguous().view(-1).view(torch.uint8)
        distributed.send(data, dst=self.peer)
        self.sent += len(data)

    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that the peer sends."""
        room = torch.empty(*shape, dtype=dtype)
        data = room.view(-1).view(torch.uint8)
        distributed.recv(data, src=self.peer)
        self.received += len(data)
        return room


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of this process: it `trains` in `world`, or runs the target for others.

    `channels` lead to the process that runs a trainer's target (none: it runs it itself), or to the trainers that a
    target's process serves.
    """

    world: World = ALONE
    trains: bool = True
    channels: tuple[PeerChannel, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether this is the one process that writes files and talks to people."""
        return self.trains and self.world.leads


def peers(rank: int, trainers: int, target_ranks: int) -> tuple[int, ...]:
    """Global ranks of the processes that `rank` exchanges states with."""
    if target_ranks == 0:
        return ()
    if rank < trainers:
        return (trainers + rank % target_ranks,)
    return tuple(range(rank - trainers, trainers, target_ranks))


@contextmanager
def joined(target_ranks: int = 0) -> Iterator[Placement]:
    """Join the processes that `torchrun` started, until the end of the context; alone, do nothing.

    Raises:
        ConfigError: there are too few processes for `target_ranks`, or more of those than trainers to serve.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    trainers = size - target_ranks
    if target_ranks > 0 and trainers < target_ranks:
        raise ConfigError(
            f"{target_ranks} of {size} processes are to run the target, which leaves {max(trainers, 0)} to train; "
            "expected at least as many. Start more with torchrun --nproc-per-node, or lower --target-ranks."
        )
    if size == 1:
        yield Placement()
        return
    distributed.init_process_group("gloo")
    try:
        yield place(trainers, target_ranks)
    finally:
        distributed.destroy_process_group()


def place(trainers: int, target_ranks: int) -> Placement:
    """This process's part among all that have joined; they call this together."""
    rank = distributed.get_rank()
    groups = [distributed.new_group(range(trainers))]
    if target_ranks > 0:
        groups.append(distributed.new_group(range(trainers, trainers + target_ranks)))
    trains = rank < trainers
    world = World.of(groups[0 if trains else 1])
    # One trainer alone has nothing to share, so it trains as a lone process does.
    return Placement(
        world if world.size > 1 else ALONE, trains, tuple(map(PeerChannel, peers(rank, trainers, target_ranks)))
    )


def serve(server: StateServer, channels: Sequence[PeerChannel]) -> None:
    """Answer whoever asks first, until all trainers have closed their channels."""
    by_rank = {channel.peer: channel for channel in channels}
    while by_rank:
        header = torch.empty(header_shape(), dtype=torch.long)
        data = header.view(torch.uint8)
        sender = distributed.recv(data)
        by_rank[sender].received += len(data)
        if not server.answer(by_rank[sender], header):
            del by_rank[sender]
