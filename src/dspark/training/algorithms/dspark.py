"""DSpark, and DFlash without its heads: blocks drafted in one pass."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Literal, TypeVar

from pydantic import Field, model_validator
from torch import Tensor

from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.dspark import DSpark
from dspark.drafters.gemma4 import Gemma4Config, Gemma4DSpark
from dspark.drafters.ingredients import Convolution, Experts, HyperConnections
from dspark.targets.adapted_shape import AdaptedShape
from dspark.training.algorithms.algorithm import Material, layer_sizes
from dspark.training.batches import Batch
from dspark.training.candidate_loss import candidate_loss
from dspark.training.drafter_section import DrafterSection, Section
from dspark.training.forced_loss import Objective, forced_loss
from dspark.training.objective import LossTerms
from dspark.training.trainable_target import TrainableTarget
from dspark.training.warm_start import sampled_features, start_from_bigrams, start_from_layers


class ConvolutionSection(Section):
    """Taps and group of the convolution around sublayers."""

    taps: int = Field(2, ge=1)
    group: int = Field(16, ge=1)


class ExpertsSection(Section):
    """Routed experts of every layer: how many, how many serve a slot, and their inner width."""

    routed: int = Field(8, ge=1)
    active: int = Field(2, ge=1)
    width: int = Field(256, ge=1)


class HyperConnectionsSection(Section):
    """Residual streams, and the iterations that make their mixing doubly stochastic."""

    streams: int = Field(4, ge=2)
    iterations: int = Field(20, ge=1)


class DSparkSection(DrafterSection):
    """Depth, heads and ingredients of a DSpark or DFlash drafter (`drafters.config` says what each is)."""

    num_hidden_layers: int = Field(3, ge=1)
    target_layer_ids: tuple[int, ...] = Field(min_length=1)
    mask_token_id: int = Field(ge=0)
    markov_rank: int = Field(128, ge=0)
    markov_head_type: Literal["vanilla", "gated", "rnn", "selector"] = "vanilla"
    enable_confidence_head: bool = True
    bigram_start: bool = True
    candidates: int | None = Field(None, ge=1)
    sliding_window: int | None = Field(None, ge=1)
    convolution: ConvolutionSection | None = None
    experts: ExpertsSection | None = None
    hyper_connections: HyperConnectionsSection | None = None

    @model_validator(mode="after")
    def _biased_by_bigrams(self) -> "DSparkSection":
        if self.bigram_start and self.markov_rank and self.markov_head_type in ("rnn", "selector"):
            raise ValueError(
                f"bigram_start fits heads whose bias is a product with the token before, {self.markov_head_type!r} is "
                "none: set bigram_start to false"
            )
        return self


class DSparkAlgorithm:
    """Blocks against the sparse teacher, from the target's last layers and the answers' bigrams."""

    section = DSparkSection

    def taps(self, section: DSparkSection) -> tuple[int, ...]:
        """The recipe's."""
        return section.target_layer_ids

    def config(self, section: DSparkSection, target: TrainableTarget) -> DrafterConfig:
        """The target's widths, the recipe's depth, taps and heads."""
        shape = target.config
        gemma = shape.gemma if isinstance(shape, AdaptedShape) else None
        kind = DrafterConfig if gemma is None else partial(Gemma4Config, **asdict(gemma))
        return kind(
            **layer_sizes(target),
            num_hidden_layers=section.num_hidden_layers,
            target_layer_ids=section.target_layer_ids,
            mask_token_id=section.mask_token_id,
            block_size=section.block_size,
            markov_rank=section.markov_rank,
            markov_head_type=HeadKind(section.markov_head_type),
            enable_confidence_head=section.enable_confidence_head,
            confidence_head_with_markov=section.markov_rank > 0,
            draft_vocab_size=section.draft_vocab_size,
            max_position_embeddings=target.info.max_positions,
            candidates=section.candidates,
            sliding_window=section.sliding_window,
            convolution=_made(Convolution, section.convolution),
            experts=_made(Experts, section.experts),
            hyper_connections=_made(HyperConnections, section.hyper_connections),
        )

    def construct(self, config: DrafterConfig, target: TrainableTarget, draft_token_ids: Tensor | None) -> DSpark:
        """A DSpark of the target's family."""
        kind = Gemma4DSpark if isinstance(config, Gemma4Config) else DSpark
        return kind(config, target.embedding_weight, target.lm_head_weight, draft_token_ids)

    def start(self, drafter: DSpark, section: DSparkSection, material: Material) -> None:
        """From the target's last layers (`warm_start`) and from bigrams (`bigram_start`)."""
        if section.warm_start:
            features = sampled_features(material.teacher, material.answers)
            start_from_layers(drafter, material.target, features[:, -drafter.config.hidden_size :])
        if section.bigram_start:
            start_from_bigrams(drafter, material.answers, material.seed)

    def loss(self, drafter: DSpark, batch: Batch, objective: Objective, greedy: bool = False) -> LossTerms:
        """Teacher-forced blocks, over the candidates where the drafter has such."""
        loss = forced_loss if drafter.config.candidates is None else candidate_loss
        return loss(drafter, batch, objective, greedy)


Made = TypeVar("Made")


def _made(kind: Callable[..., Made], section: Section | None) -> Made | None:
    """An ingredient of the configuration from its section of the recipe."""
    return None if section is None else kind(**section.model_dump())
