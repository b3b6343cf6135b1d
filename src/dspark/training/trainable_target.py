"""What a target must offer so that drafters can be trained for it."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from dspark.training.on_policy import WritingTarget
from dspark.training.teacher import TeacherTarget


class TrainableTarget(TeacherTarget, WritingTarget, Protocol):
    """A target that a drafter can be trained for: its teacher, its own texts, its weights, and its shape."""

    @property
    def embedding_weight(self) -> Tensor: ...
    @property
    def lm_head_weight(self) -> Tensor: ...
    @property
    def config(self) -> "DecoderShape": ...

    def layer_weights(self, layer: int) -> Mapping[str, Tensor]: ...


class DecoderShape(Protocol):
    """Sizes of the target's decoder that the drafter's layers share."""

    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope(self) -> "RotaryShape": ...


class RotaryShape(Protocol):
    """The target's rotary base; drafters use it without scaling."""

    @property
    def theta(self) -> float: ...
