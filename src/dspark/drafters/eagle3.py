"""Eagle3: the autoregressive baseline that DeepSpec trains beside DSpark, a chain over several tapped layers."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspark.drafters.attention import DraftAttention
from dspark.drafters.chain import ChainDrafter, ChainLayer
from dspark.drafters.config import check_decoder_shape, check_draft_vocabulary, check_target_layers
from dspark.drafters.mlp import DraftMLP
from dspark.errors import ConfigError
from dspark.nn.norm import RMSNorm
from dspark.types import NOT_RECORDED, Acceptance


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Sizes of an Eagle3 drafter, named as in DeepSpec's config.json; `ttt_length` is the drafts of one round.

    `draft_vocab_size` is the size of a pruned draft vocabulary, which DeepSpec does not have. Raises ConfigError for
    more than one layer, and for taps outside [0, N - 2].
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    ttt_length: int = 7
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    attention_bias: bool = False
    draft_vocab_size: int | None = None

    def __post_init__(self) -> None:
        check_decoder_shape(self)
        check_target_layers(self.target_layer_ids, self.num_target_layers)
        check_draft_vocabulary(self)
        if self.target_layer_ids[0] < 0:
            raise ConfigError("Eagle3 does not read the embedding: target_layer_ids start at 0, found -1")
        if self.num_hidden_layers != 1 or self.ttt_length < 1:
            found = f"{self.num_hidden_layers} and {self.ttt_length}"
            raise ConfigError(
                f"num_hidden_layers and ttt_length are {found}; Eagle3 has one layer and drafts at least 1"
            )

    @property
    def gamma(self) -> int:
        """Drafts of one round."""
        return self.ttt_length


class Eagle3Layer(ChainLayer):
    """A decoder layer on [normed embedding ; normed hidden], whose residual is the hidden state as it came."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = DraftMLP(config.hidden_size, config.intermediate_size)

    def join(self, hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden state, and both side by side, each with its own norm."""
        return hidden, torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)


class Eagle3(ChainDrafter):
    """The drafter; `fc` joins the tapped layers, `embedding` and `head` [V, d] are the target's."""

    def __init__(
        self,
        config: Eagle3Config,
        embedding: Tensor,
        head: Tensor,
        draft_token_ids: Tensor | None = None,
        name: str = "eagle3",
        acceptance: Acceptance = NOT_RECORDED,
    ) -> None:
        layer = Eagle3Layer(config)
        super().__init__(config, config.ttt_length, layer, embedding, head, draft_token_ids, name, acceptance)
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)

    def inputs(self, features: Tensor) -> Tensor:
        """fc of the tapped layers."""
        hidden: Tensor = self.fc(features)
        return hidden.to(self.dtype)
