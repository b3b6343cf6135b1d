"""Where the drafter's weights live during training: whole in a lone process, or in shards over a world of several.

Shards are FSDP2's (`fully_shard`): each process keeps its rows of every parameter, gradient and moment in float32, and
all parameters are gathered for a forward pass and its backward pass. A drafter is a few layers, so it is one group.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from dspark.drafters.drafter_module import DrafterModule
from dspark.training.objective import LossTerms
from dspark.training.world import World

Loss = Callable[..., LossTerms]
"""A function of a drafter, a batch and more."""


class Replica(Protocol):
    """Runs losses of a drafter, and shows it whole to those who read or export it."""

    def loss(self, function: Loss, *arguments: Any) -> LossTerms:
        """`function(drafter, *arguments)`, with gradient when autograd is on."""
        ...

    def backward(self, total: Tensor, last: bool) -> None:
        """Add the gradient of `total`; after the `last` one of a step, gradients are sums over all processes."""
        ...

    def updated(self, world: World) -> None:
        """Let the drafter do what follows an optimiser step beside gradients, alike in all processes of `world`."""
        ...

    def whole(self) -> Any:
        """A context in which the drafter's parameters are whole, plain and not to be changed. All processes enter."""
        ...


class LoneReplica:
    """The drafter of a lone process, as it is."""

    def __init__(self, drafter: DrafterModule) -> None:
        self._drafter = drafter

    def loss(self, function: Loss, *arguments: Any) -> LossTerms:
        """See `Replica`."""
        return function(self._drafter, *arguments)

    def backward(self, total: Tensor, last: bool) -> None:
        """See `Replica`."""
        total.backward()  # type: ignore[no-untyped-call]

    def updated(self, world: World) -> None:
        """See `Replica`."""
        self._drafter.after_update(world.sum)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """See `Replica`."""
        yield


class ShardedReplica:
    """Shards `drafter` in place over `world`: its parameters become DTensors, which its optimiser must be made of."""

    def __init__(self, drafter: DrafterModule, world: World) -> None:
        self._pass = _Pass(drafter)
        # Gradients are summed: a step divides them itself, by the weight of its slots and not by a count of processes.
        self._shards: FSDPModule = fully_shard(self._pass, mesh=world.mesh())
        self._shards.set_gradient_divide_factor(1.0)
        # Gloo has no scaled sums, and a factor of one needs none.
        self._shards.set_force_sum_reduction_for_comms(True)

    def loss(self, function: Loss, *arguments: Any) -> LossTerms:
        """See `Replica`."""
        found: tuple[Tensor, LossTerms] = self._pass(function, *arguments)
        total, terms = found
        return replace(terms, total=total)

    def backward(self, total: Tensor, last: bool) -> None:
        """See `Replica`."""
        self._shards.set_requires_gradient_sync(last)
        total.backward()  # type: ignore[no-untyped-call]

    def updated(self, world: World) -> None:
        """See `Replica`."""
        self._pass.drafter.after_update(world.sum)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """See `Replica`."""
        # FSDP's own unsharded parameters would not do: they go back to shards when somebody asks for a state dict.
        drafter = self._pass.drafter
        shards = dict(drafter.named_parameters(remove_duplicate=False))
        wholes = {name: plain(shard.detach()) for name, shard in shards.items()}
        _put(drafter, {name: nn.Parameter(whole, requires_grad=False) for name, whole in wholes.items()})
        try:
            yield
        finally:
            _put(drafter, shards)


class _Pass(nn.Module):
    """Makes any function of the drafter a module's forward: there FSDP gathers parameters and hooks their gradients."""

    def __init__(self, drafter: DrafterModule) -> None:
        super().__init__()
        self.drafter = drafter

    def forward(self, function: Loss, *arguments: Any) -> tuple[Tensor, LossTerms]:
        """The loss apart, because FSDP looks for tensors with gradient in tuples, not in dataclasses."""
        terms = function(self.drafter, *arguments)
        return terms.total, replace(terms, total=terms.total.detach())


def _put(drafter: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    for name, parameter in parameters.items():
        owner, _, leaf = name.rpartition(".")
        setattr(drafter.get_submodule(owner), leaf, parameter)


def replica_of(drafter: DrafterModule, world: World) -> Replica:
    """The drafter's replica in `world`; in a world of several it shards the drafter in place."""
    return LoneReplica(drafter) if world.group is None else ShardedReplica(drafter, world)


def plain(tensor: Tensor) -> Tensor:
    """A tensor whose shards are sums or copies on every process, as a plain one."""
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def clip_gradients(parameters: list[Tensor], limit: float) -> Tensor:
    """Scale all gradients so that their common norm, which is returned, is at most `limit`."""
    return plain(nn.utils.clip_grad_norm_(parameters, limit))
