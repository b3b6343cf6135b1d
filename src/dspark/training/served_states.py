"""Hidden states that a server computes, as a teacher's source: the final norm and the LM head run here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dspark.data.vllm_states import HiddenStates, extraction_layers
from dspark.errors import CompatibilityError
from dspark.training.hidden_states import SequenceStates
from dspark.types import AFTER_NORM, TargetInfo


class NormedTarget(Protocol):
    """A target whose weights are at hand."""

    info: TargetInfo

    def final_norm(self, hidden: Tensor) -> Tensor:
        """What the LM head reads, of the last layer's output [..., d]."""
        ...


@dataclass(frozen=True, slots=True)
class ServedStates:
    """A `StateSource` that asks `server`, which sends what enters layers, the output of the last one included."""

    server: HiddenStates
    target: NormedTarget

    def states(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Tensor], taps: Sequence[int]
    ) -> list[SequenceStates]:
        """See `StateSource`.

        Raises:
            CompatibilityError: the server lacks a tapped layer or the last one.
        """
        wanted = extraction_layers(taps, self.target.info.num_layers)
        if not set(wanted) <= set(self.server.layers):
            raise CompatibilityError(
                f"the source of hidden states gives layers {list(self.server.layers)}, the recipe's taps need "
                f"{list(wanted)} (numbered by the layer they enter)."
            )
        found = self.server.of(sequences)
        return [self._sequence(states, own, taps) for states, own in zip(found, places, strict=True)]

    def _sequence(self, states: Tensor, places: Tensor, taps: Sequence[int]) -> SequenceStates:
        """Of one sequence's states [S, L, d]."""
        by_layer = dict(zip(self.server.layers, states.unbind(1), strict=True))
        last = by_layer[self.target.info.num_layers]
        tapped = [self.target.final_norm(last) if tap == AFTER_NORM else by_layer[tap + 1] for tap in taps]
        features = torch.cat([one.to(torch.bfloat16) for one in tapped], dim=-1)
        return SequenceStates(features, self.target.final_norm(last[places]))
