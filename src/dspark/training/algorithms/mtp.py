"""MTP-1: one module that predicts the token after the next."""

from typing import Literal

from torch import Tensor

from dspark.drafters.mtp import MTP, MTPConfig
from dspark.training.algorithms.algorithm import Material, layer_sizes
from dspark.training.batches import Batch
from dspark.training.drafter_section import DrafterSection
from dspark.training.forced_loss import Objective, forced_loss
from dspark.training.objective import LossTerms
from dspark.training.trainable_target import TrainableTarget
from dspark.training.warm_start import copy_layer, sampled_features
from dspark.types import AFTER_NORM


class MTPSection(DrafterSection):
    """An MTP-1 drafts one token a round."""

    block_size: Literal[1] = 1


class MTPAlgorithm:
    """One slot against the sparse teacher, optionally from the target's last layer."""

    section = MTPSection

    def taps(self, section: MTPSection) -> tuple[int, ...]:
        """The target's last state."""
        return (AFTER_NORM,)

    def config(self, section: MTPSection, target: TrainableTarget) -> MTPConfig:
        """The target's widths."""
        return MTPConfig(**layer_sizes(target), num_hidden_layers=1, draft_vocab_size=section.draft_vocab_size)

    def construct(self, config: MTPConfig, target: TrainableTarget, draft_token_ids: Tensor | None) -> MTP:
        """An MTP module."""
        return MTP(config, target.embedding_weight, target.lm_head_weight, draft_token_ids)

    def start(self, drafter: MTP, section: MTPSection, material: Material) -> None:
        """The target's last layer on a projection that stays random: none is known that says what comes after next."""
        if not section.warm_start:
            return
        target = material.target
        states = sampled_features(material.teacher, material.answers)
        copy_layer(drafter.layer, target.layer_weights(target.info.num_layers - 1), states, drafter.config)

    def loss(self, drafter: MTP, batch: Batch, objective: Objective, greedy: bool = False) -> LossTerms:
        """Teacher-forced chains of one row."""
        return forced_loss(drafter, batch, objective, greedy)
