"""A tiny random target, drafters of every head for it, and a law to hold them against."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.data.chat import Message
from dspark.drafters.chain import ChainDrafter
from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.dspark import DSpark
from dspark.drafters.eagle3 import Eagle3, Eagle3Config
from dspark.drafters.mtp import MTP, MTPConfig
from dspark.nn.linear import PlainKernel
from dspark.targets.config import DecoderConfig
from dspark.targets.native import NativeTarget
from dspark.targets.weights import expected_shapes
from dspark.types import TargetInfo

WIDTH, LAYERS, TAPS, POSITIONS = 16, 2, (-1, 0), 64


def native(vocabulary: int, eos: tuple[int, ...] = (), seed: int = 0, positions: int = POSITIONS) -> NativeTarget:
    config = DecoderConfig.parse(
        {
            "model_type": "llama",
            "vocab_size": vocabulary,
            "hidden_size": WIDTH,
            "intermediate_size": 24,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 2,
            "max_position_embeddings": positions,
        }
    )
    generator = torch.Generator().manual_seed(seed)
    weights = {name: _random(shape, generator) for name, shape in expected_shapes(config).items()}
    info = TargetInfo("tiny", vocabulary, WIDTH, LAYERS, positions, eos, weights_hash=f"{seed:064x}")
    return NativeTarget(config, info, weights, PlainKernel())


def drafter(
    target: NativeTarget,
    gamma: int,
    head: HeadKind | None = HeadKind.VANILLA,
    kept: Tensor | None = None,
    seed: int = 3,
) -> DSpark:
    config = DrafterConfig(
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=target.info.vocab_size,
        num_target_layers=LAYERS,
        target_layer_ids=TAPS,
        mask_token_id=target.info.vocab_size - 1,
        block_size=gamma,
        markov_rank=0 if head is None else 4,
        markov_head_type=head or HeadKind.VANILLA,
        enable_confidence_head=head is not None,
        draft_vocab_size=None if kept is None else len(kept),
    )
    module = DSpark(config, target.embedding_weight, target.lm_head_weight, kept)
    module.initialize(torch.Generator().manual_seed(seed), std=0.4)
    return module.eval().requires_grad_(False)


CHAINS = ("eagle3", "mtp")


def chain(target: NativeTarget, kind: str, gamma: int = 3, kept: Tensor | None = None, seed: int = 3) -> ChainDrafter:
    """A random Eagle3 of `gamma` steps, or an MTP-1, which has one."""
    sizes = {
        "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "vocab_size": target.info.vocab_size, "num_target_layers": LAYERS,
        "draft_vocab_size": None if kept is None else len(kept),
    }  # fmt: skip
    shared = target.embedding_weight, target.lm_head_weight
    module: ChainDrafter
    if kind == "eagle3":
        module = Eagle3(Eagle3Config(**sizes, target_layer_ids=(0,), ttt_length=gamma), *shared, kept)
    else:
        module = MTP(MTPConfig(**sizes), *shared, kept)
    module.initialize(torch.Generator().manual_seed(seed), std=0.4)
    return module.eval().requires_grad_(False)


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator) * (1.0 if len(shape) == 1 else shape[-1] ** -0.5)


class Letters:
    """Stands in for a detokeniser: every token is a letter at once."""

    def push(self, token: int) -> str:
        return chr(ord("a") + token)

    def flush(self) -> str:
        return ""


@dataclass(frozen=True)
class LetterCodec:
    """Stands in for a text codec: a chat is its letters, roles set apart by token 0."""

    vocabulary: int

    def encode_chat(self, messages: list[Message]) -> list[int]:
        text = "a".join(message.content for message in messages)
        return [(ord(letter) - ord("a")) % self.vocabulary for letter in text]

    def detokeniser(self) -> Letters:
        return Letters()
