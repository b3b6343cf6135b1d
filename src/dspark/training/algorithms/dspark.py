"""DSpark, and DFlash without its heads: blocks drafted in one pass."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.dspark import DSpark
from dspark.training.algorithms.algorithm import Material, layer_sizes
from dspark.training.batches import Batch
from dspark.training.drafter_section import DrafterSection
from dspark.training.forced_loss import Objective, forced_loss
from dspark.training.objective import LossTerms
from dspark.training.trainable_target import TrainableTarget
from dspark.training.warm_start import sampled_features, start_from_bigrams, start_from_layers


class DSparkSection(DrafterSection):
    """Depth and heads of a DSpark or DFlash drafter."""

    num_hidden_layers: int = Field(3, ge=1)
    target_layer_ids: tuple[int, ...] = Field(min_length=1)
    mask_token_id: int = Field(ge=0)
    markov_rank: int = Field(128, ge=0)
    markov_head_type: Literal["vanilla", "gated", "rnn"] = "vanilla"
    enable_confidence_head: bool = True
    bigram_start: bool = True


class DSparkAlgorithm:
    """Blocks against the sparse teacher, from the target's last layers and the answers' bigrams."""

    section = DSparkSection

    def taps(self, section: DSparkSection) -> tuple[int, ...]:
        """The recipe's."""
        return section.target_layer_ids

    def config(self, section: DSparkSection, target: TrainableTarget) -> DrafterConfig:
        """The target's widths, the recipe's depth, taps and heads."""
        return DrafterConfig(
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
        )

    def construct(self, config: DrafterConfig, target: TrainableTarget, draft_token_ids: Tensor | None) -> DSpark:
        """A DSpark."""
        return DSpark(config, target.embedding_weight, target.lm_head_weight, draft_token_ids)

    def start(self, drafter: DSpark, section: DSparkSection, material: Material) -> None:
        """From the target's last layers (`warm_start`) and from bigrams (`bigram_start`)."""
        if section.warm_start:
            features = sampled_features(material.teacher, material.answers)
            start_from_layers(drafter, material.target, features[:, -drafter.config.hidden_size :])
        if section.bigram_start:
            start_from_bigrams(drafter, material.answers, material.seed)

    def loss(self, drafter: DSpark, batch: Batch, objective: Objective, greedy: bool = False) -> LossTerms:
        """Teacher-forced blocks."""
        return forced_loss(drafter, batch, objective, greedy)
