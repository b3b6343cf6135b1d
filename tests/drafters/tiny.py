"""A tiny random drafter, its target's shared tensors, and a target that lends them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.dspark import DSpark
from dspark.drafters.ingredients import Convolution, Experts, HyperConnections
from dspark.types import TargetInfo

CONFIG = DrafterConfig(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=31,
    num_target_layers=8,
    target_layer_ids=(1, 4, 6),
    mask_token_id=30,
    block_size=4,
    markov_rank=6,
    enable_confidence_head=True,
)
KINDS = list(HeadKind)


def tensors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shared(config: DrafterConfig = CONFIG) -> tuple[Tensor, Tensor]:
    """(embedding, head) of the tiny target."""
    embedding, head = tensors(2, config.vocab_size, config.hidden_size, seed=7)
    return embedding, head


def drafter(config: DrafterConfig = CONFIG, kept: Tensor | None = None, seed: int = 1) -> DSpark:
    """Weights large enough that every part moves the outputs, norms and biases included."""
    module = DSpark(config, *shared(config), kept)
    generator = torch.Generator().manual_seed(seed)
    module.initialize(generator, std=0.3)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim != 2 or not parameter.any():  # norms, biases, and what starts as the identity
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module


def with_head(kind: HeadKind) -> DrafterConfig:
    return replace(CONFIG, markov_head_type=kind)


DFLASH = replace(CONFIG, markov_rank=0, enable_confidence_head=False)

CONVOLVED = replace(CONFIG, convolution=Convolution(taps=2, group=4))
WINDOWED = replace(CONFIG, sliding_window=5)
MIXED = replace(CONFIG, experts=Experts(routed=4, active=2, width=12))
STREAMED = replace(CONFIG, hyper_connections=HyperConnections(streams=3, iterations=20))
INGREDIENTS = [CONVOLVED, WINDOWED, MIXED, STREAMED]
"""Each thing that layers may have beyond Qwen3's, alone."""

DFLASH2 = replace(CONVOLVED, markov_head_type=HeadKind.SELECTOR, candidates=5)
PRODUCTION = replace(WINDOWED, experts=MIXED.experts, hyper_connections=STREAMED.hyper_connections)
EXTENDED = [*INGREDIENTS, DFLASH2, PRODUCTION]


@dataclass(frozen=True)
class TinyTarget:
    """Lends `shared()`; its info fits `CONFIG` and has hashes."""

    embedding_weight: Tensor
    lm_head_weight: Tensor
    info: TargetInfo


INFO = TargetInfo(
    name="tiny",
    vocab_size=CONFIG.vocab_size,
    hidden_size=CONFIG.hidden_size,
    num_layers=CONFIG.num_target_layers,
    max_positions=64,
    eos_token_ids=(0,),
    weights_hash="aa" * 32,
    template_hash="bb" * 32,
)


def target(info: TargetInfo = INFO) -> TinyTarget:
    return TinyTarget(*shared(), info)
