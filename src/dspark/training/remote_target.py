"""A target whose states come from elsewhere; its weights are at hand, for its head, warm starts and its own texts."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from dspark.data.vllm_states import HiddenStates, extraction_layers, stack_states
from dspark.errors import CompatibilityError
from dspark.training.trainable_target import TrainableTarget
from dspark.types import Cache, TargetOutput


class WeightsAtHand(TrainableTarget, Protocol):
    """A target that can also norm the output of its last layer."""

    def final_norm(self, hidden: Tensor) -> Tensor:
        """What the LM head reads, of the last layer's output [..., d]."""
        ...


class RemoteTarget:
    """A `TrainableTarget` whose teacher is `source`: `local` norms what it sends, and does all the rest."""

    def __init__(self, local: WeightsAtHand, source: HiddenStates) -> None:
        self.info, self.config = local.info, local.config
        self.embedding_weight, self.lm_head_weight = local.embedding_weight, local.lm_head_weight
        self._local, self._source = local, source

    def states(self, token_ids: Tensor, lengths: Tensor, taps: Sequence[int]) -> TargetOutput:
        """States of whole right-padded sequences: `last_hidden` [B, T, d], `features` [B, T, m * d].

        Raises:
            CompatibilityError: the source lacks a tapped layer or the last one.
        """
        missing = set(extraction_layers(taps, self.info.num_layers)) - set(self._source.layers)
        if missing:
            raise CompatibilityError(
                f"the source of hidden states gives layers {list(self._source.layers)}, the recipe's taps need "
                f"{list(extraction_layers(taps, self.info.num_layers))} (numbered by the layer they enter)."
            )
        rows = [row[:n].tolist() for row, n in zip(token_ids, lengths.tolist(), strict=True)]
        states, layers, length = self._source.of(rows), self._source.layers, token_ids.shape[1]
        last = stack_states(states, layers, [self.info.num_layers], length)
        features = stack_states(states, layers, [tap + 1 for tap in taps], length)
        return TargetOutput(self._local.final_norm(last), features)

    def new_cache(self, capacity: int) -> Cache:
        """The local target's."""
        return self._local.new_cache(capacity)

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        """Run here: texts are written token by token, which extraction is not made for."""
        return self._local.forward(token_ids, cache, taps)

    def logits(self, last_hidden: Tensor) -> Tensor:
        """The LM head, run here."""
        return self._local.logits(last_hidden)

    def layer_weights(self, layer: int) -> Mapping[str, Tensor]:
        """Weights of a decoder layer, for warm starts."""
        return self._local.layer_weights(layer)
