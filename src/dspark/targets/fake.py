"""A target with a known law, in microseconds: the loop around it can be tested against exact probabilities."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dspark.errors import CapacityError
from dspark.types import Cache, TargetInfo, TargetOutput

PADDING = -1


class FakeCache:
    """The tokens of one request: all the state that the fake target has."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.tokens: list[int] = []

    def append(self, tokens: Sequence[int]) -> None:
        """Take in `tokens`.

        Raises:
            CapacityError: they do not fit.
        """
        if self.length + len(tokens) > self.capacity:
            raise CapacityError(f"{len(tokens)} positions after {self.length} do not fit a cache of {self.capacity}")
        self.tokens.extend(tokens)
        self.length = len(self.tokens)

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions; CapacityError if there are fewer."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll a cache of {self.length} positions back to {length}")
        del self.tokens[length:]
        self.length = len(self.tokens)


class FakeTarget:
    """A `Target` whose logits are `law(last tokens)`, where at most `order` tokens of the past matter.

    The state of a position is the row [layer, position, last `order` tokens], so d = order + 2. `logits` decodes the
    last layer's rows; tapped features are the rows of their layers, from which tests can tell what they hold.
    """

    def __init__(
        self,
        law: Callable[[Sequence[int]], Tensor],
        vocab_size: int,
        order: int = 2,
        max_positions: int = 64,
        eos_token_ids: tuple[int, ...] = (),
        num_layers: int = 4,
    ) -> None:
        self.law = law
        self.order = order
        self.info = TargetInfo("fake", vocab_size, order + 2, num_layers, max_positions, eos_token_ids)

    def new_cache(self, capacity: int) -> FakeCache:
        """An empty cache of `capacity` positions."""
        return FakeCache(capacity)

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        """Append `token_ids` [T]; return their rows [T, d] and those of the tapped layers [T, m * d]."""
        assert isinstance(cache, FakeCache)
        start = cache.length
        cache.append(token_ids.tolist())
        rows = [self._row(cache.tokens, position) for position in range(start, cache.length)]
        states = torch.tensor(rows).reshape(-1, self.info.hidden_size - 1)
        tapped = [self._at_layer(states, layer) for layer in taps]
        features = torch.cat(tapped, dim=-1) if tapped else states.new_zeros(len(states), 0)
        return TargetOutput(self._at_layer(states, self.info.num_layers - 1), features)

    def logits(self, last_hidden: Tensor) -> Tensor:
        """Logits [..., V] of state rows [..., d]."""
        windows = last_hidden[..., 2:].reshape(-1, self.order).long().tolist()
        rows = [self.law([token for token in window if token != PADDING]) for window in windows]
        return torch.stack(rows).reshape(*last_hidden.shape[:-1], self.info.vocab_size)

    def _row(self, tokens: list[int], position: int) -> list[float]:
        window = tokens[max(position + 1 - self.order, 0) : position + 1]
        return [float(x) for x in (position, *[PADDING] * (self.order - len(window)), *window)]

    def _at_layer(self, states: Tensor, layer: int) -> Tensor:
        return torch.cat((torch.full((len(states), 1), float(layer)), states), dim=-1)
