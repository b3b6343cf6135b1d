"""MTP-1: DeepSeek-V3's multi-token prediction at depth one, a module that predicts the token after the next.

Source: DeepSeek-V3 technical report, section 2.2: h' = M [RMSNorm(Emb(t_{i+1})) ; RMSNorm(h_i)], one decoder layer on
h', and the target's own head. h_i is the target's state after its final norm. The decoder layer is dense and Qwen3's,
where DeepSeek-V3 has its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspark.drafters.attention import DraftAttention
from dspark.drafters.chain import ChainDrafter, ChainLayer
from dspark.drafters.config import check_decoder_shape, check_draft_vocabulary
from dspark.drafters.mlp import DraftMLP
from dspark.errors import ConfigError
from dspark.nn.norm import RMSNorm
from dspark.types import AFTER_NORM, NOT_RECORDED, Acceptance


@dataclass(frozen=True, slots=True)
class MTPConfig:
    """Sizes of an MTP module, named as in config.json; `draft_vocab_size` is that of a pruned draft vocabulary.

    Raises ConfigError for more than one layer.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    attention_bias: bool = False
    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        check_decoder_shape(self)
        check_draft_vocabulary(self)
        if self.num_hidden_layers != 1:
            raise ConfigError(f"num_hidden_layers is {self.num_hidden_layers}; an MTP module has one layer")

    @property
    def gamma(self) -> int:
        """Drafts of one round."""
        return 1

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """The target's last state, and nothing else."""
        return (AFTER_NORM,)


class MTPLayer(ChainLayer):
    """A decoder layer on a projection of [normed embedding ; normed hidden]."""

    def __init__(self, config: MTPConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.enorm, self.hnorm = RMSNorm(width, config.rms_norm_eps), RMSNorm(width, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, width)
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.mlp = DraftMLP(width, config.intermediate_size)

    def join(self, hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """The projection, and the same normed."""
        projected = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1)).to(hidden.dtype)
        return projected, self.input_layernorm(projected)


class MTP(ChainDrafter):
    """The drafter: one token a round."""

    def __init__(
        self,
        config: MTPConfig,
        embedding: Tensor,
        head: Tensor,
        draft_token_ids: Tensor | None = None,
        name: str = "mtp",
        acceptance: Acceptance = NOT_RECORDED,
    ) -> None:
        super().__init__(config, config.gamma, MTPLayer(config), embedding, head, draft_token_ids, name, acceptance)
        self.config = config

    def inputs(self, features: Tensor) -> Tensor:
        """The target's last state as it is."""
        return features
