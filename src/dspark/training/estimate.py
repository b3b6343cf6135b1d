"""What a recipe will take before it starts: positions, bytes of a feature store, hours of the target.

Shapes: w = m * d features a token, K teacher tokens a response token.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dspark.data.answers import Answer
from dspark.data.teacher_record import UNREAD_FEATURES, UNREAD_LAWS, FeaturePrecision
from dspark.training.algorithms.registry import algorithm_named
from dspark.training.recipe import Recipe
from dspark.training.teacher import Teacher

_BYTES = {FeaturePrecision.BF16: 2, FeaturePrecision.FP8: 1}
_SCALE_BYTES = {FeaturePrecision.BF16: 0, FeaturePrecision.FP8: 4}
_LAW_BYTES = 6
"""An id of 4 bytes and a probability of 2."""


class DecoderSizes(Protocol):
    """The sizes of a target that decide what a forward pass takes."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DataSize:
    """Answers of a recipe: `positions` tokens, `responses` of them response; `squares` sums the squared lengths."""

    answers: int
    positions: int
    responses: int
    squares: int

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "DataSize":
        """Count `answers`."""
        lengths = [len(answer.token_ids) for answer in answers]
        responses = sum(len(answer.response_ids) for answer in answers)
        return cls(len(answers), sum(lengths), responses, sum(length**2 for length in lengths))


def store_bytes(data: DataSize, width: int, top_k: int, precision: FeaturePrecision) -> int:
    """Bytes of all records, but for headers: `width` = w numbers per kept position, K tokens per kept law."""
    features = data.positions - UNREAD_FEATURES * data.answers
    laws = data.responses - UNREAD_LAWS * data.answers
    return features * (width * _BYTES[precision] + _SCALE_BYTES[precision]) + laws * top_k * _LAW_BYTES


def forward_flops(sizes: DecoderSizes, data: DataSize) -> float:
    """Floating-point operations of one pass over `data`: matrices, causal attention, and the head at responses."""
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    d, layers = sizes.hidden_size, sizes.num_layers
    matrices = d * (2 * queries + 2 * keys + 3 * sizes.intermediate_size)
    products = 2.0 * layers * matrices * data.positions
    attention = 2.0 * layers * queries * data.squares  # scores and values, 2 operations each, half of them masked
    return products + attention + 2.0 * d * sizes.vocab_size * data.responses


def measured_seconds(teacher: Teacher, answers: Sequence[Answer], per_step: int) -> float:
    """Seconds a position that `teacher` takes for `answers`, `per_step` at a time as in training.

    The first batch runs once before, for what happens only once.
    """
    batches = [answers[i : i + per_step] for i in range(0, len(answers), per_step)]
    teacher.records(batches[0])
    started = time.perf_counter()
    for batch in batches:
        teacher.records(batch)
    return (time.perf_counter() - started) / sum(len(answer.token_ids) for answer in answers)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to get features: `bytes` on disk, positions that the target runs over, its hours, and their price."""

    name: str
    bytes: int
    target_positions: int
    target_hours: float
    price: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `dspark data estimate` says. `epochs` counts how often the run sees each training answer."""

    data: DataSize
    epochs: float
    seconds_per_position: float
    speed: str
    price_per_hour: float | None
    choices: tuple[Choice, ...]

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "answers": self.data.answers,
            "positions": self.data.positions,
            "response_positions": self.data.responses,
            "epochs": self.epochs,
            "target_seconds_per_position": self.seconds_per_position,
            "speed": self.speed,
            "price_per_hour": self.price_per_hour,
            "choices": {
                choice.name: {
                    "bytes": choice.bytes,
                    "target_positions": choice.target_positions,
                    "target_hours": choice.target_hours,
                    "price": choice.price,
                }
                for choice in self.choices
            },
        }


def estimate(
    recipe: Recipe,
    train: Sequence[Answer],
    width: int,
    seconds_per_position: float,
    speed: str,
    price_per_hour: float | None = None,
) -> Estimate:
    """Bytes and hours of features of `width` = d numbers a tap for the training answers `train`.

    `speed` says where `seconds_per_position` comes from. Online, the target runs over every answer of every step; with
    a store, once over every answer that the run sees. Held-out answers are few, and left out.
    """
    data = DataSize.of(train)
    seen = recipe.optimiser.total_steps * recipe.data.answers_per_step
    epochs = seen / data.answers
    once = round(data.positions * min(1.0, epochs))
    taps = len(algorithm_named(recipe.algorithm).taps(recipe.drafter))

    def choice(name: str, positions: int, precision: FeaturePrecision | None) -> Choice:
        whole = 0 if precision is None else store_bytes(data, taps * width, recipe.data.teacher_top_k, precision)
        hours = positions * seconds_per_position / 3600
        price = None if price_per_hour is None else hours * price_per_hour
        return Choice(name, round(whole * min(1.0, epochs)), positions, hours, price)

    choices = (
        choice("online", round(data.positions * epochs), None),
        *(choice(f"store {precision.value}", once, precision) for precision in FeaturePrecision),
    )
    return Estimate(data, epochs, seconds_per_position, speed, price_per_hour, choices)
