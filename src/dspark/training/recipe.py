"""A training recipe: everything that decides what a run computes, as YAML. Unknown keys are refused."""

import difflib
import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator

from dspark.core.losses import LossCoefficients
from dspark.errors import ConfigError, FormatError
from dspark.nn.kernel_choice import resolve_precision
from dspark.training.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_named
from dspark.training.batches import steps_per_epoch
from dspark.training.drafter_section import DrafterSection, Section


class DataSection(Section):
    """Which answers are read, and how much of them one optimiser step sees, and how precise features are.

    A step's answers are divided among processes, and each process's share in `micro_batches` that run one after the
    other: less memory, the same step but for rounding.
    """

    answers: Path
    max_temperature: float = Field(1.0, ge=0)
    max_length: int = Field(512, ge=32)
    answers_per_step: int = Field(4, ge=1)
    micro_batches: int = Field(1, ge=1)
    anchors_per_answer: int = Field(64, ge=1)
    held_out: int = Field(16, ge=0)
    teacher_top_k: int = Field(64, ge=1)
    feature_precision: Literal["bf16", "fp8"] = "bf16"


class LossSection(Section):
    """Coefficients of the loss terms; that of the total variation multiplies sum |p_d - p_t| = 2 TV, as DeepSpec's.

    `base_cross_entropy` is for drafters with `candidates`, whose base logits must learn what to put among them.

    With `vocabulary_chunk`, draft logits are computed for that many tokens at a time, and again in the backward pass:
    less memory for more arithmetic. Without it they are kept whole. Slot k weighs exp(-k / `decay`): 4 at every block
    size in DeepSpec's code; `decay: gamma` ties it to the block size, as the paper writes it.
    """

    cross_entropy: float = Field(default=0.5, ge=0)
    total_variation: float = Field(default=0.9, ge=0)
    confidence: float = Field(default=0.2, ge=0)
    decay: Annotated[float, Field(gt=0)] | Literal["gamma"] = 4.0
    base_cross_entropy: float = Field(default=0.0, ge=0)
    vocabulary_chunk: int | None = Field(default=None, ge=1)

    def coefficients(self, gamma: int) -> LossCoefficients:
        """The same in the terms of `core.losses`, for blocks of `gamma` slots."""
        decay = float(gamma) if self.decay == "gamma" else self.decay
        return LossCoefficients(
            self.cross_entropy, self.total_variation, self.confidence, decay, self.base_cross_entropy
        )


class OptimiserSection(Section):
    """The learning rate: a linear warm-up, then constant with a linear cool-down at the end, or falling as a cosine.

    A run has `total_steps`, or as many as `epochs` over the answers take; its warm-up has `warmup_steps`, or a
    `warmup_share` of all. With the constant rate, the state before the cool-down is kept: raising the length continues
    from there. `kind` muon updates the backbone's matrices with Muon, everything else with AdamW, at the same learning
    rate. A step whose loss or gradient is not finite changes no weight and is counted; `max_bad_steps` of them in a
    row end the run.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip: float = Field(1.0, gt=0)
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = Field(20, ge=0)
    warmup_share: float | None = Field(None, ge=0, lt=1)
    cooldown_steps: int = Field(0, ge=0)
    total_steps: int = Field(0, ge=0)
    epochs: float | None = Field(None, gt=0)
    max_bad_steps: int = Field(5, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.total_steps > 0) == (self.epochs is not None):
            raise ValueError("give total_steps (at least 1) or epochs, one of the two")
        if self.schedule == "cosine" and self.cooldown_steps:
            raise ValueError("a cosine ends at 0 by itself; drop cooldown_steps")
        return self

    def settled(self, steps_per_epoch: int) -> "OptimiserSection":
        """The same with `total_steps` and `warmup_steps` counted out."""
        total = self.total_steps if self.epochs is None else max(1, round(self.epochs * steps_per_epoch))
        warmup = self.warmup_steps if self.warmup_share is None else round(self.warmup_share * total)
        counted = {"total_steps": total, "warmup_steps": warmup, "epochs": None, "warmup_share": None}
        return self.model_copy(update=counted)

    @property
    def cooldown_start(self) -> int:
        """The first step of the cool-down; `total_steps` without one."""
        return self.total_steps - self.cooldown_steps

    def cools(self, step: int) -> bool:
        """Whether 0-based `step` belongs to the cool-down."""
        return self.cooldown_steps > 0 and step >= self.cooldown_start

    def rate(self, step: int) -> float:
        """Learning rate of 0-based `step`."""
        warm = min(1.0, (step + 1) / (self.warmup_steps + 1))
        if self.schedule == "cosine":
            falling = max(0, step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
            return self.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * falling))
        cold = 1.0 if self.cooldown_steps == 0 else min(1.0, (self.total_steps - step) / (self.cooldown_steps + 1))
        return self.learning_rate * warm * cold


class EvaluationSection(Section):
    """How a run is watched; nothing here changes what a step computes.

    Every `every_steps` steps the drafter is measured on the held-out answers, and by greedy decoding of
    `on_policy_answers` of their prompts, at most `on_policy_tokens` tokens each (0 answers: teacher-forced alone). The
    run stops after `patience` evaluations in a row without a better accepted length, and keeps the drafters of the
    last `keep` evaluations beside the best one.
    """

    every_steps: int = Field(default=100, ge=1)
    on_policy_answers: int = Field(default=8, ge=0)
    on_policy_tokens: int = Field(default=128, ge=1)
    patience: int | None = Field(default=None, ge=1)
    keep: int = Field(default=0, ge=0)


class BlockSection(Section):
    """Curriculum: from step `from_step` on, blocks of `size` slots are trained (at most the drafter's block size)."""

    from_step: int = Field(ge=0)
    size: int = Field(ge=1)


class Recipe(Section):
    """One training run. With `precision` bf16, matrix products run in bfloat16; weights and losses stay float32.
    `auto` is bf16 where the processor multiplies it by itself (AVX-512 BF16, AMX, Arm's BF16), else fp32.

    `algorithm` names an entry of the registry; which keys `drafter` has is up to it.
    """

    target: str
    algorithm: str = DEFAULT_ALGORITHM
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    drafter: SerializeAsAny[DrafterSection]
    data: DataSection
    loss: LossSection = Field(default_factory=LossSection)
    optimiser: OptimiserSection
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)
    blocks: Annotated[tuple[BlockSection, ...], Field(max_length=8)] = ()
    seed: int = 42

    @field_validator("algorithm")
    @classmethod
    def _known(cls, name: str) -> str:
        algorithm_named(name)
        return name

    @field_validator("drafter", mode="before")
    @classmethod
    def _by_algorithm(cls, value: Any, info: ValidationInfo) -> Any:
        """An unknown algorithm has been reported already."""
        if "algorithm" not in info.data or isinstance(value, DrafterSection):
            return value
        return algorithm_named(info.data["algorithm"]).section.model_validate(value)

    @field_validator("blocks")
    @classmethod
    def _ascending(cls, blocks: tuple[BlockSection, ...]) -> tuple[BlockSection, ...]:
        starts = [block.from_step for block in blocks]
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError(f"from_step must ascend from block to block, found {starts}")
        return blocks

    def settled(self, answers: int) -> "Recipe":
        """The recipe with all numbers that depend on the number of training `answers`, or on this processor."""
        optimiser = self.optimiser.settled(steps_per_epoch(answers, self.data.answers_per_step))
        return self.model_copy(update={"optimiser": optimiser, "precision": resolve_precision(self.precision)})

    def block_size(self, step: int) -> int:
        """Number of slots trained at `step`."""
        started = [block.size for block in self.blocks if block.from_step <= step]
        return min(started[-1] if started else self.drafter.block_size, self.drafter.block_size)


def read_recipe(path: Path, overrides: tuple[str, ...] = ()) -> Recipe:
    """The recipe in a YAML file, with `section.key=value` overrides applied.

    Relative paths in the file start at the file; those in overrides start, as typed, at the current directory.

    Raises:
        FormatError: the file is missing or no YAML mapping.
        ConfigError: a key is unknown, a value cannot be, or an override is malformed.
    """
    if not path.is_file():
        raise FormatError(f"{path} does not exist. Expected a YAML recipe.")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is not YAML: {error}.") from error
    if not isinstance(tree, dict):
        raise FormatError(f"{path} holds a {type(tree).__name__}, expected a mapping of sections.")
    _anchor_paths(tree, path.parent)
    for override in overrides:
        _apply(tree, override)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        algorithm = tree.get("algorithm", DEFAULT_ALGORITHM)
        raise ConfigError(f"{path}: {'; '.join(_explain(item, algorithm) for item in error.errors())}") from error


def _anchor_paths(tree: dict[str, Any], directory: Path) -> None:
    for name, key in (("data", "answers"), ("drafter", "start_from")):
        section = tree.get(name)
        if isinstance(section, dict) and isinstance(section.get(key), str):
            section[key] = str(directory / section[key])


def _apply(tree: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator:
        raise ConfigError(f"Override {override!r} has no '='. Write section.key=value.")
    *sections, leaf = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"Override {override!r}: {section} is a value, not a section.")
    try:
        tree[leaf] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"Override {override!r}: {value!r} is not a YAML value. Quote it, or write another."
        ) from error


def _explain(item: Any, algorithm: str) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        return f"{where}: {item['msg']} (found {item.get('input')!r})"
    owners = _owners(item["loc"])
    if owners:
        return f"{where}: a key of algorithm {' and '.join(owners)}, not of {algorithm}; remove it"
    near = _nearest(item["loc"])
    return f"{where}: unknown key" + (f", did you mean {near!r}?" if near else "")


def _owners(place: tuple[int | str, ...]) -> list[str]:
    """The algorithms whose drafters have the refused key."""
    section, key = place[0], place[-1]
    return [name for name, one in ALGORITHMS.items() if section == "drafter" and key in one.section.model_fields]


def _nearest(place: tuple[int | str, ...]) -> str | None:
    """The known key that an unknown one resembles: of its own section, else of another, with its section then."""
    *sections, key = (part for part in place if isinstance(part, str))
    own = sections[0] if sections else ""
    known = _known_keys()
    local = difflib.get_close_matches(key, known.get(own, ()), n=1)
    if local:
        return local[0]
    dotted = {name: f"{section}.{name}".lstrip(".") for section, names in known.items() for name in names}
    elsewhere = difflib.get_close_matches(key, dotted, n=1)
    return dotted[elsewhere[0]] if elsewhere else None


def _known_keys() -> dict[str, list[str]]:
    """Keys of every section by its name; those of the recipe itself under the empty one."""
    sections: dict[str, list[type[BaseModel]]] = {
        "": [Recipe], "data": [DataSection], "loss": [LossSection], "optimiser": [OptimiserSection],
        "evaluation": [EvaluationSection], "blocks": [BlockSection],
        "drafter": [algorithm.section for algorithm in ALGORITHMS.values()],
    }  # fmt: skip
    return {name: [key for model in models for key in model.model_fields] for name, models in sections.items()}
