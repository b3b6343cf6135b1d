"""Which columns of a forward's features each drafter reads, when several read other layers. m taps, d width."""

from collections.abc import Iterable

import torch
from torch import Tensor

from dspark.engine.strategy import Strategy


class FeatureRows:
    """`taps` are the layers that any drafter reads, each once."""

    def __init__(self, strategies: Iterable[Strategy], width: int) -> None:
        wanted = [strategy.taps for strategy in strategies]
        self.taps = tuple(dict.fromkeys(tap for taps in wanted for tap in taps))
        self._width = width

    def of(self, strategy: Strategy, features: Tensor, rows: Tensor) -> Tensor:
        """The drafter's features [len(rows), m * d] at ascending `rows` of all features [N, len(taps) * d]."""
        first, end = int(rows[0]), int(rows[-1]) + 1
        if end - first == len(rows) and 2 * len(rows) >= len(features):  # a view, unless it would keep much more alive
            chosen = features[first:end]
        else:
            chosen = features[rows.to(features.device)]
        if strategy.taps == self.taps:
            return chosen
        places = [self.taps.index(tap) for tap in strategy.taps]
        return torch.cat([chosen[:, place * self._width : (place + 1) * self._width] for place in places], dim=1)
