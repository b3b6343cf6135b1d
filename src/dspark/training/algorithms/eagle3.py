"""Eagle3 with training-time test: chains of drafts, each fed with the state before it, as when drafting."""

import torch
from pydantic import Field
from torch import Tensor

from dspark.drafters.eagle3 import Eagle3, Eagle3Config
from dspark.training.algorithms.algorithm import Material, layer_sizes
from dspark.training.batches import Batch
from dspark.training.drafter_section import DrafterSection
from dspark.training.forced_loss import Objective, forced_loss
from dspark.training.objective import LossTerms
from dspark.training.trainable_target import TrainableTarget
from dspark.training.warm_start import copy_layer, sampled_features


class Eagle3Section(DrafterSection):
    """`block_size` is the number of training-time test steps, and of drafts of a round."""

    target_layer_ids: tuple[int, ...] = Field(min_length=1)


class Eagle3Algorithm:
    """Chains against the sparse teacher, optionally from the target's last layer."""

    section = Eagle3Section

    def taps(self, section: Eagle3Section) -> tuple[int, ...]:
        """The recipe's, by custom three: low, middle and high."""
        return section.target_layer_ids

    def config(self, section: Eagle3Section, target: TrainableTarget) -> Eagle3Config:
        """The target's widths, the recipe's taps and steps."""
        return Eagle3Config(
            **layer_sizes(target),
            num_hidden_layers=1,
            target_layer_ids=section.target_layer_ids,
            ttt_length=section.block_size,
            draft_vocab_size=section.draft_vocab_size,
        )

    def construct(self, config: Eagle3Config, target: TrainableTarget, draft_token_ids: Tensor | None) -> Eagle3:
        """An Eagle3."""
        return Eagle3(config, target.embedding_weight, target.lm_head_weight, draft_token_ids)

    @torch.no_grad()
    def start(self, drafter: Eagle3, section: Eagle3Section, material: Material) -> None:
        """From the target's last layer, reading the last tap; the projections' embedding half stays random."""
        if not section.warm_start:
            return
        width, target = drafter.config.hidden_size, material.target
        last_tap = sampled_features(material.teacher, material.answers)[:, -width:]
        weights = target.layer_weights(target.info.num_layers - 1)
        layer = drafter.layer
        copy_layer(layer, weights, last_tap, drafter.config)
        layer.get_parameter("hidden_norm.weight").copy_(weights["input_layernorm.weight"])
        layer.get_parameter("input_layernorm.weight").fill_(1.0)
        drafter.fc.weight.zero_()
        drafter.fc.weight[:, -width:] = torch.eye(width)

    def loss(self, drafter: Eagle3, batch: Batch, objective: Objective, greedy: bool = False) -> LossTerms:
        """Teacher-forced chains."""
        return forced_loss(drafter, batch, objective, greedy)
