"""What every drafter of this package is: a trainable module and, at the same time, the `Drafter` that the engine runs.

Shapes: T context tokens, m taps, A anchors, G slots (gamma), N supervised slots, d width, V_draft draft vocabulary.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dspark.core.factored_logits import FactoredLogits
from dspark.drafters.config import DrafterShape
from dspark.errors import ConfigError
from dspark.nn.linear import Linear, LinearKernel
from dspark.types import Cache, DraftBlock, DrafterInfo


@runtime_checkable
class IdentityStart(Protocol):
    """A part of a drafter that can be made to change nothing until it has learned."""

    def start_as_identity(self) -> None: ...


class DrafterModule(nn.Module):
    """Base of all drafters. `embedding` [V, d] and `head` [V_draft, d] are the target's: frozen, aliased, never saved.

    `draft_token_ids` [V_draft] lists the target ids of a pruned draft vocabulary, None without pruning. The engine
    feeds features of `info.target_layer_ids`, in that order.
    """

    embedding: Tensor
    head: Tensor
    draft_token_ids: Tensor | None
    info: DrafterInfo
    packed_head: Linear | None

    @property
    @abstractmethod
    def shape(self) -> DrafterShape:
        """The configuration, as far as all drafters share it."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """What states are computed in."""

    @property
    def device(self) -> torch.device:
        """Where states live."""
        return self.embedding.device

    @abstractmethod
    def new_cache(self, capacity: int) -> Cache:
        """Empty context of up to `capacity` committed positions."""

    @abstractmethod
    def extend(self, features: Tensor, cache: Cache) -> None:
        """Append the next T committed positions, from their features [T, m * d]."""

    @abstractmethod
    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> DraftBlock:
        """Start a block whose anchor stands at position `cache.length`."""

    @abstractmethod
    def forced_states(
        self,
        features: Tensor,
        token_ids: Tensor,
        anchors: Tensor,
        previous: Tensor,
        lengths: Sequence[int] | None = None,
    ) -> Tensor:
        """Hidden states [A, G, d] of teacher-forced blocks, from features [T, m * d] and ids [T] of whole documents.

        Features are those of `shape.target_layer_ids`; a block reads none at or behind its anchor. Documents of
        `lengths` tokens (default: one) are packed end to end; `anchors` [A] are ascending packed indices.
        `previous` [A, G] is the token before each slot's label: the anchor itself, then the gold tokens.
        """

    @abstractmethod
    def factors(self, hidden: Tensor, previous: Tensor, supervised: Tensor) -> FactoredLogits:
        """Logits [N, V_draft] of the `supervised` [A, G] slots, left as factors; the rest as in `draft_logits`."""

    @abstractmethod
    def draft_logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Teacher-forced logits [A, G, V_draft] of hidden [A, G, d], `previous` [A, G] as in `forced_states`."""

    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """Confidence logits [A, G], or None without a confidence head; arguments as for `draft_logits`."""
        return None

    def unpacked(self) -> tuple[nn.Module, ...]:
        """Linear modules that inference leaves as they are; here: none."""
        return ()

    def compile_for(self, kernel: LinearKernel) -> None:
        """Prepare faster inference with `kernel`, before the matrices are packed; here: nothing."""

    def initialize(self, generator: torch.Generator, std: float = 0.02) -> None:
        """Fresh weights as DeepSpec draws them: matrices from N(0, std^2), biases 0, norms 1.

        What layers have beyond Qwen3's starts as the identity.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, IdentityStart):
                module.start_as_identity()

    def after_update(self, over_processes: Callable[[Tensor], Tensor] = lambda own: own) -> None:
        """What follows an optimiser step beside gradients; here: nothing.

        `over_processes` sums a tensor over all processes that train together.
        """

    def base_logits(self, hidden: Tensor) -> Tensor:
        """U = head(h), [..., V_draft] of hidden states [..., d]."""
        if self.packed_head is not None:
            return self.packed_head(hidden)
        return nn.functional.linear(hidden, self.head.to(hidden.dtype))

    def share_head(self, head: Tensor, draft_token_ids: Tensor | None) -> None:
        """Alias the target's `head` [V, d], or keep its rows of the draft vocabulary.

        A head of V_draft rows is taken as kept already. Raises ConfigError for sizes that do not fit.
        """
        check_shared(self.shape, self.embedding, head, draft_token_ids)
        self.register_buffer("head", _draft_rows(head.detach(), draft_token_ids), persistent=False)
        self.register_buffer("draft_token_ids", draft_token_ids, persistent=False)
        self.packed_head = None


def check_shared(shape: DrafterShape, embedding: Tensor, head: Tensor, draft_token_ids: Tensor | None) -> None:
    """Raises ConfigError unless the target's tensors and the draft vocabulary have the sizes that `shape` names."""
    rows = shape.vocab_size if shape.draft_vocab_size is None else shape.draft_vocab_size
    for name, tensor, allowed in (
        ("embedding", embedding, {shape.vocab_size}),
        ("head", head, {shape.vocab_size, rows}),
    ):
        if tensor.shape[0] not in allowed or tensor.shape[1] != shape.hidden_size:
            raise ConfigError(
                f"the target's {name} is {list(tensor.shape)}, expected {sorted(allowed)} rows of {shape.hidden_size}"
            )
    kept = None if draft_token_ids is None else len(draft_token_ids)
    if kept != shape.draft_vocab_size:
        raise ConfigError(f"draft_vocab_size is {shape.draft_vocab_size}, but {kept} draft token ids were given")


def _draft_rows(head: Tensor, draft_token_ids: Tensor | None) -> Tensor:
    if draft_token_ids is None or len(head) == len(draft_token_ids):
        return head
    return head[draft_token_ids]
