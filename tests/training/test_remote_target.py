"""A teacher on a server teaches what the same teacher here does."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dspark.data.vllm_states import extraction_layers
from dspark.errors import CompatibilityError
from dspark.training.remote_target import RemoteTarget
from dspark.training.teacher import Teacher
from tests.training.tiny import LAYERS, TinyTarget, tiny_answers

TAPS = (3, 0)


class LocalTarget(TinyTarget):
    """Its final "norm" is the tanh that the tiny target ends with."""

    def final_norm(self, hidden: Tensor) -> Tensor:
        return torch.tanh(hidden)


class Source:
    """Extracts as a server would: the state that enters layer i is the output of layer i - 1, numbers ascend."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self._target = TinyTarget()

    def of(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        return [self._states(list(ids)) for ids in sequences]

    def _states(self, ids: list[int]) -> Tensor:
        taps = [layer - 1 for layer in self.layers]
        features = self._target.states(torch.tensor([ids]), torch.tensor([len(ids)]), taps).features[0]
        return features.unflatten(-1, (len(taps), -1))


def test_records_are_those_of_the_target_here() -> None:
    """Taps out of order, answers of different lengths in one batch."""
    answers = tiny_answers(3)
    remote = RemoteTarget(LocalTarget(), Source(extraction_layers(TAPS, LAYERS)))
    ours = Teacher(remote, TAPS, 5).records(answers)
    expected = Teacher(TinyTarget(), TAPS, 5).records(answers)
    for record, other in zip(ours, expected, strict=True):
        assert record.features.equal(other.features)
        assert record.ids.equal(other.ids)
        assert record.probabilities.equal(other.probabilities)


@pytest.mark.parametrize("layers", [(1, 4), (1, LAYERS), (4, LAYERS)])
def test_a_source_that_lacks_a_layer_is_refused(layers: tuple[int, ...]) -> None:
    remote = RemoteTarget(LocalTarget(), Source(layers))
    with pytest.raises(CompatibilityError, match=r"taps need \[1, 4, 6\]"):
        Teacher(remote, TAPS, 5).records(tiny_answers(1))
