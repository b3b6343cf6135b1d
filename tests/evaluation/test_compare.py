"""One clock for all arms, and divergences that are explained only by true near-ties."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dspark.evaluation.agreement import first_divergence
from dspark.evaluation.compare import Decoded, Speed, Timed, decoding_speed, run_arms, speed
from dspark.types import TargetInfo, TargetOutput


class Ticker:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_arms_take_turns_and_are_timed_alike() -> None:
    clock, order = Ticker(), []

    def arm(name: str, seconds: float, tokens: int):  # type: ignore[no-untyped-def]
        def decode(prompt: Sequence[int]) -> Decoded:
            order.append((name, prompt[0]))
            clock.now += seconds
            return Decoded(tuple(range(tokens)))

        return decode

    runs = run_arms({"a": arm("a", 1.0, 4), "b": arm("b", 0.5, 4)}, [[1], [2]], repeats=2, clock=clock)
    assert order == [("a", 1), ("b", 1), ("a", 2), ("b", 2)] * 2
    assert speed(runs["a"]).per_repeat == (4.0, 4.0)
    assert speed(runs["b"]).over(speed(runs["a"])).median == 2.0


def test_median_and_spread() -> None:
    assert (Speed((3.0, 1.0, 2.0)).median, Speed((3.0, 1.0, 2.0)).spread) == (2.0, (1.0, 3.0))


class FixedTarget:
    """Always the same logits."""

    info = TargetInfo("fixed", 4, 1, 1, 100, ())

    def __init__(self, logits: Sequence[float]) -> None:
        self._logits = torch.tensor(logits)

    def new_cache(self, capacity: int) -> None:
        return None

    def forward(self, token_ids: Tensor, cache: None, taps: Sequence[int] = ()) -> TargetOutput:
        return TargetOutput(torch.zeros(len(token_ids), 1), torch.zeros(len(token_ids), 0))

    def logits(self, last_hidden: Tensor) -> Tensor:
        return self._logits


@pytest.mark.parametrize(
    ("logits", "other", "explained"),
    [
        ([5.0, 4.95, 0.0, 0.0], (0, 1), True),
        ([5.0, 4.0, 0.0, 0.0], (0, 1), False),
        ([5.0, 4.95, 0.0, 0.0], (0, 2), False),
    ],
)
def test_only_the_two_likeliest_tokens_at_a_near_tie_explain_a_divergence(
    logits: list[float], other: tuple[int, ...], explained: bool
) -> None:
    divergence = first_divergence(FixedTarget(logits), [3], (0, 0), other)  # type: ignore[arg-type]
    assert divergence is not None
    assert divergence.position == 1
    assert divergence.explained is explained


def test_equal_outputs_agree() -> None:
    assert first_divergence(FixedTarget([1, 0, 0, 0]), [3], (0, 1), (0, 1)) is None  # type: ignore[arg-type]


def test_an_output_that_stops_short_is_never_explained() -> None:
    divergence = first_divergence(FixedTarget([5, 5, 0, 0]), [3], (0, 1), (0, 1, 2))  # type: ignore[arg-type]
    assert divergence is not None
    assert (divergence.position, divergence.explained) == (2, False)


def test_decoding_alone_counts_neither_prompt_nor_first_token() -> None:
    answer = Timed(Decoded((1, 2, 3), prefill_seconds=4.0), seconds=5.0)
    assert decoding_speed([[answer, answer]]).per_repeat == (2.0,)
    assert speed([[answer]]).per_repeat == (0.6,)
