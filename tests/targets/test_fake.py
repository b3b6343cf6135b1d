"""The fake target keeps the `Target` contract: incremental, rolled back, features by layer and position."""

import pytest
import torch

from dspark.core.hashed_law import HashedLaw
from dspark.errors import CapacityError
from dspark.targets.fake import FakeTarget

V = 5
LAW = HashedLaw(V, 1, order=2)
TEXT = [3, 1, 4, 1, 0]


def target() -> FakeTarget:
    return FakeTarget(LAW, V, order=2)


def test_logits_are_the_law_after_each_position() -> None:
    model = target()
    output = model.forward(torch.tensor(TEXT), model.new_cache(8))
    expected = torch.stack([LAW(TEXT[: i + 1]) for i in range(len(TEXT))])
    assert torch.equal(model.logits(output.last_hidden), expected)
    assert torch.equal(model.logits(output.last_hidden[2]), expected[2])
    assert output.features.shape == (5, 0)


def test_pieces_and_rollback_change_nothing() -> None:
    model = target()
    whole = model.forward(torch.tensor(TEXT), model.new_cache(8), taps=(0, 2))
    cache = model.new_cache(8)
    model.forward(torch.tensor([3, 1, 2, 2]), cache, taps=(0, 2))
    cache.rollback(2)
    rest = model.forward(torch.tensor(TEXT[2:]), cache, taps=(0, 2))
    assert torch.equal(rest.last_hidden, whole.last_hidden[2:])
    assert torch.equal(rest.features, whole.features[2:])


def test_features_name_layer_position_and_token() -> None:
    model = target()
    features = model.forward(torch.tensor(TEXT), model.new_cache(8), taps=(-1, 2)).features
    rows = features.reshape(5, 2, model.info.hidden_size)
    assert rows[3].tolist() == [[-1, 3, 4, 1], [2, 3, 4, 1]]
    assert rows[0, 0].tolist() == [-1, 0, -1, 3]


def test_cache_refuses_what_cannot_be() -> None:
    model = target()
    cache = model.new_cache(4)
    with pytest.raises(CapacityError, match="5 positions after 0 do not fit a cache of 4"):
        model.forward(torch.tensor(TEXT), cache)
    with pytest.raises(CapacityError, match="cannot roll a cache of 0 positions back to 1"):
        cache.rollback(1)
