"""What a DFlash or DSpark drafter looks like, and which combinations cannot work."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

from dspark.drafters.ingredients import Convolution, Experts, HyperConnections
from dspark.errors import ConfigError


class DecoderShape(Protocol):
    """Sizes that every kind of drafter shares."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def attention_bias(self) -> bool: ...


class DrafterShape(DecoderShape, Protocol):
    """Sizes of a drafter for a given target, whatever its kind."""

    @property
    def rope_theta(self) -> float: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_target_layers(self) -> int: ...
    @property
    def target_layer_ids(self) -> tuple[int, ...]: ...
    @property
    def draft_vocab_size(self) -> int | None: ...


class HeadKind(StrEnum):
    """Sequential heads by DeepSpec's `markov_head_type`, and DFlash 2's selector."""

    VANILLA = "vanilla"
    GATED = "gated"
    RNN = "rnn"
    SELECTOR = "selector"


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Sizes and switches of one drafter, named as in DeepSpec's config.json.

    `block_size` is gamma, the drafts of one pass. Layer ids count decoder layers of a target with `num_target_layers`
    of them, -1 being the embedding. `markov_rank` 0 without confidence head is DFlash. `draft_vocab_size` is the size
    of a pruned draft vocabulary, None when drafts range over all `vocab_size` target tokens.

    Beyond DeepSpec: `candidates` restricts drafts to the K likeliest tokens of the base logits, among which the
    sequential head then chooses; `sliding_window` lets a block see only so much context before its anchor;
    `convolution`, `experts` and `hyper_connections` change the layers. None switches each of them off.

    Raises ConfigError for combinations that no drafter can have.
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
    mask_token_id: int
    block_size: int = 7
    markov_rank: int = 0
    markov_head_type: HeadKind = HeadKind.VANILLA
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = True
    draft_vocab_size: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    attention_bias: bool = False
    max_position_embeddings: int = 32_768
    candidates: int | None = None
    sliding_window: int | None = None
    convolution: Convolution | None = None
    experts: Experts | None = None
    hyper_connections: HyperConnections | None = None

    def __post_init__(self) -> None:
        check_decoder_shape(self)
        if self.block_size < 1:
            raise ConfigError(f"block_size is {self.block_size}; expected at least 1")
        check_target_layers(self.target_layer_ids, self.num_target_layers)
        _check_vocabulary(self)
        _check_heads(self)
        _check_ingredients(self)

    @property
    def gamma(self) -> int:
        """Drafts of one round."""
        return self.block_size

    @property
    def features_width(self) -> int:
        """Input width m * d of `fc`."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def draft_vocabulary(self) -> int:
        """Rows of the draft head: V_draft when pruned, else V."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    @property
    def confidence_reads_markov(self) -> bool:
        """Whether the confidence head sees W1 of the previous token beside the hidden state."""
        return self.enable_confidence_head and self.confidence_head_with_markov

    @property
    def is_dflash(self) -> bool:
        """No sequential head and no confidence head."""
        return self.markov_rank == 0 and not self.enable_confidence_head

    @property
    def has_plain_layers(self) -> bool:
        """Qwen3 layers over the whole context and nothing else: what compiled calls and DeepSpec's reader know."""
        return (self.sliding_window, self.convolution, self.experts, self.hyper_connections) == (None,) * 4

    @property
    def is_deepspec(self) -> bool:
        """Whether DeepSpec has all parts of this drafter."""
        return self.has_plain_layers and self.candidates is None and self.markov_head_type is not HeadKind.SELECTOR


def spread_target_layers(num_target_layers: int, taps: int = 5) -> tuple[int, ...]:
    """Layer ids round(linspace(1, N - 3, m)): DFlash's rule (deepest tap two layers below the last)."""
    if taps < 1 or num_target_layers - 3 < taps:
        raise ConfigError(f"{taps} taps do not fit between layers 1 and N - 3 of a target with N = {num_target_layers}")
    step = (num_target_layers - 4) / max(taps - 1, 1)
    return tuple(round(1 + i * step) for i in range(taps))


def check_decoder_shape(config: DecoderShape) -> None:
    """Raises ConfigError for sizes that no Qwen3-style decoder layer can have."""
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                 "head_dim", "vocab_size", "num_target_layers"):  # fmt: skip
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}; expected at least 1")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ConfigError(
            f"num_attention_heads {config.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {config.num_key_value_heads}"
        )
    if config.head_dim % 2:
        raise ConfigError(f"head_dim is {config.head_dim}; rotary positions need an even number")


def check_target_layers(ids: tuple[int, ...], num_target_layers: int) -> None:
    """Raises ConfigError unless `ids` increase strictly within [-1, N - 2]."""
    if not ids:
        raise ConfigError("target_layer_ids is empty; name at least one target layer to read features from")
    if any(b <= a for a, b in pairwise(ids)):
        raise ConfigError(f"target_layer_ids {list(ids)} must be strictly increasing")
    if ids[0] < -1 or ids[-1] > num_target_layers - 2:
        raise ConfigError(
            f"target_layer_ids {list(ids)} must lie in [-1, {num_target_layers - 2}] for a target of "
            f"{num_target_layers} layers; the last layer is refused because its state is ambiguous (before or after "
            "the final norm)"
        )


def check_draft_vocabulary(config: DrafterShape) -> None:
    """Raises ConfigError unless a pruned draft vocabulary fits the target's."""
    if config.draft_vocab_size is not None and not 1 <= config.draft_vocab_size <= config.vocab_size:
        raise ConfigError(f"draft_vocab_size {config.draft_vocab_size} is outside [1, {config.vocab_size}]")


def _check_vocabulary(config: DrafterConfig) -> None:
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise ConfigError(f"mask_token_id {config.mask_token_id} is outside the vocabulary [0, {config.vocab_size})")
    check_draft_vocabulary(config)


def _check_heads(config: DrafterConfig) -> None:
    if config.markov_rank < 0:
        raise ConfigError(f"markov_rank is {config.markov_rank}; expected 0 (no sequential head) or more")
    if config.confidence_reads_markov and config.markov_rank == 0:
        raise ConfigError(
            "confidence_head_with_markov needs a Markov embedding, but markov_rank is 0; "
            "set markov_rank above 0 or confidence_head_with_markov to false"
        )


def _check_ingredients(config: DrafterConfig) -> None:
    if config.candidates is not None and not 1 <= config.candidates <= config.draft_vocabulary:
        raise ConfigError(f"candidates is {config.candidates}, outside [1, {config.draft_vocabulary}]")
    if config.candidates is not None and config.markov_rank == 0:
        raise ConfigError(
            f"a sequential head chooses among the {config.candidates} candidates, but markov_rank is 0; "
            "set it above 0 or leave candidates out"
        )
    if config.sliding_window is not None and config.sliding_window < 1:
        raise ConfigError(f"sliding_window is {config.sliding_window}; expected at least 1 context token, or none set")
    if config.convolution is not None and config.hidden_size % config.convolution.group:
        raise ConfigError(
            f"convolution: groups of {config.convolution.group} channels do not fill hidden_size {config.hidden_size}"
        )
