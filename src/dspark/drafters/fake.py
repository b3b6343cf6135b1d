"""A drafter with a known law, in microseconds: Markov, history dependent or independent, as its law looks back."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dspark.errors import CapacityError
from dspark.types import Cache, DrafterInfo


class FakeContext:
    """The context features of one request, kept as they came: `features` [length, m * d]."""

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.features = torch.empty(0, width)

    def append(self, features: Tensor) -> None:
        """Take in `features` [T, m * d] of the next positions; CapacityError if they do not fit."""
        if self.length + len(features) > self.capacity:
            raise CapacityError(f"{len(features)} positions after {self.length} do not fit a cache of {self.capacity}")
        self.features = torch.cat((self.features, features))
        self.length = len(self.features)

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions; CapacityError if there are fewer."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll a cache of {self.length} positions back to {length}")
        self.features = self.features[:length]
        self.length = length


class FakeBlock:
    """One block: remembers the anchor and the drafts so far, which are all that its law may look at."""

    def __init__(self, drafter: "FakeDrafter", anchor: int, gamma: int) -> None:
        self._drafter = drafter
        self._tokens: tuple[int, ...] = ()
        self._anchor, self._gamma = anchor, gamma

    def step(self, previous: int) -> tuple[Tensor, float | None]:
        """Draft logits [V_draft] and confidence logit of the next slot, after the anchor or the draft `previous`."""
        if len(self._tokens) == self._gamma or (not self._tokens and previous != self._anchor):
            raise ValueError(f"step {len(self._tokens)} of a block of {self._gamma} after token {previous}")
        self._tokens = (*self._tokens, previous)
        confidence = self._drafter.confidence
        return self._drafter.law(self._tokens), None if confidence is None else confidence(self._tokens)


class FakeDrafter:
    """A `Drafter` whose logits [V_draft] are `law((anchor, drafts so far))`, confidence logits likewise.

    It reads no features, but keeps them in its cache, where tests can look.
    """

    def __init__(
        self,
        law: Callable[[Sequence[int]], Tensor],
        vocab_size: int,
        gamma: int = 3,
        feature_size: int = 8,
        target_layer_ids: tuple[int, ...] = (0, 2),
        draft_token_ids: Tensor | None = None,
        confidence: Callable[[Sequence[int]], float] | None = None,
    ) -> None:
        self.law, self.confidence = law, confidence
        self.feature_size = feature_size
        self.info = DrafterInfo("fake", gamma, target_layer_ids, vocab_size, draft_token_ids)

    def new_cache(self, capacity: int) -> FakeContext:
        """An empty context of `capacity` positions."""
        return FakeContext(capacity, self.feature_size)

    def extend(self, features: Tensor, cache: Cache) -> None:
        """Append context features [T, m * d], where m * d is `feature_size`."""
        assert isinstance(cache, FakeContext)
        cache.append(features)

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> FakeBlock:
        """A block of `gamma` slots after `anchor`."""
        return FakeBlock(self, anchor, self.info.gamma if gamma is None else gamma)
