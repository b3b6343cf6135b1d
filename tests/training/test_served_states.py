"""A teacher on a server teaches what the same teacher here does."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dspark.data.vllm_states import extraction_layers
from dspark.errors import CompatibilityError
from dspark.training.served_states import ServedStates
from dspark.training.teacher import Teacher
from dspark.types import AFTER_NORM
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


@pytest.mark.parametrize("taps", [TAPS, (AFTER_NORM,), (AFTER_NORM, 2)])
def test_records_are_those_of_the_target_here(taps: tuple[int, ...]) -> None:
    """Taps out of order, answers of different lengths in one batch, laws at some of their tokens alone."""
    answers, wanted = tiny_answers(3), [torch.arange(2, 9), torch.tensor([4]), torch.arange(5)]
    source = ServedStates(Source(extraction_layers(taps, LAYERS)), LocalTarget())
    ours = Teacher(LocalTarget(), taps, 5, source=source).records(answers, wanted)
    expected = Teacher(TinyTarget(), taps, 5).records(answers, wanted)
    for record, other in zip(ours, expected, strict=True):
        assert record.features.equal(other.features)
        assert record.ids.equal(other.ids)
        torch.testing.assert_close(record.probabilities, other.probabilities, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layers", [(1, 4), (1, LAYERS), (4, LAYERS)])
def test_a_source_that_lacks_a_layer_is_refused(layers: tuple[int, ...]) -> None:
    source = ServedStates(Source(layers), LocalTarget())
    with pytest.raises(CompatibilityError, match=r"taps need \[1, 4, 6\]"):
        Teacher(LocalTarget(), TAPS, 5, source=source).records(tiny_answers(1))
