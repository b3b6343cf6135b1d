"""The seam between the trainer and the kinds of drafters it can train."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from dspark.data.answers import Answer
from dspark.drafters.config import DrafterShape
from dspark.drafters.drafter_module import DrafterModule
from dspark.training.batches import Batch
from dspark.training.drafter_section import DrafterSection
from dspark.training.forced_loss import Objective
from dspark.training.objective import LossTerms
from dspark.training.teacher import Teacher
from dspark.training.trainable_target import TrainableTarget


@dataclass(frozen=True, slots=True)
class Material:
    """What fresh weights may start from: the target, its teacher, the training answers, and the run's seed."""

    target: TrainableTarget
    teacher: Teacher
    answers: Sequence[Answer]
    seed: int


class Algorithm(Protocol):
    """A kind of drafter, and how it is taught.

    Each method is only called with a section of that class, a config from
    its own `config`, and a drafter from its own `construct`. What it constructs, `save_drafter` can export and
    `load_drafter` can open.
    """

    @property
    def section(self) -> type[DrafterSection]:
        """What the recipe's `drafter` section is parsed as."""
        ...

    def taps(self, section: Any) -> tuple[int, ...]:
        """The target's layers that teacher records hold: `target_layer_ids` of the configuration."""
        ...

    def config(self, section: Any, target: TrainableTarget) -> DrafterShape:
        """The drafter's configuration for `target`: a frozen dataclass."""
        ...

    def construct(self, config: Any, target: TrainableTarget, draft_token_ids: Tensor | None) -> DrafterModule:
        """A drafter of `config` on the target's embedding and head, weights unset."""
        ...

    def start(self, drafter: Any, section: Any, material: Material) -> None:
        """Give freshly initialised weights the starts that `section` asks for."""
        ...

    def loss(self, drafter: Any, batch: Batch, objective: Objective, greedy: bool = False) -> LossTerms:
        """The `BatchLoss` that is trained and evaluated."""
        ...


def layer_sizes(target: TrainableTarget) -> dict[str, Any]:
    """The keys of a drafter's configuration that are the target's own."""
    shape, info = target.config, target.info
    return {
        "hidden_size": info.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": info.vocab_size,
        "num_target_layers": info.num_layers,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope.theta,
    }
