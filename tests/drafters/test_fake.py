"""The fake drafter keeps the `Drafter` contract: sequential, block by block, context as it came."""

import pytest
import torch

from dspark.core.hashed_law import HashedLaw
from dspark.drafters.fake import FakeDrafter
from dspark.errors import CapacityError

LAW = HashedLaw(4, 1, order=None)


def test_block_looks_at_anchor_and_drafts() -> None:
    drafter = FakeDrafter(LAW, 4, gamma=2, confidence=lambda tokens: float(len(tokens)))
    block = drafter.begin(3, drafter.new_cache(4))
    logits, confidence = block.step(3)
    assert torch.equal(logits, LAW((3,)))
    assert confidence == 1
    logits, confidence = block.step(0)
    assert torch.equal(logits, LAW((3, 0)))
    assert confidence == 2
    with pytest.raises(ValueError, match="step 2 of a block of 2"):
        block.step(1)


def test_block_begins_with_its_anchor() -> None:
    drafter = FakeDrafter(LAW, 4)
    with pytest.raises(ValueError, match="step 0 of a block of 1 after token 2"):
        drafter.begin(3, drafter.new_cache(4), gamma=1).step(2)


def test_context_is_kept_and_rolled_back() -> None:
    drafter = FakeDrafter(LAW, 4, feature_size=2)
    cache = drafter.new_cache(3)
    rows = torch.arange(6.0).reshape(3, 2)
    drafter.extend(rows[:1], cache)
    drafter.extend(rows[1:], cache)
    assert torch.equal(cache.features, rows)
    cache.rollback(1)
    assert torch.equal(cache.features, rows[:1])
    assert cache.length == 1
    with pytest.raises(CapacityError, match="cannot roll a cache of 1 positions back to 2"):
        cache.rollback(2)
    with pytest.raises(CapacityError, match="3 positions after 1 do not fit a cache of 3"):
        drafter.extend(rows, cache)
