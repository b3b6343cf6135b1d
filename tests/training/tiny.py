"""A tiny target, tiny answers and a tiny recipe: a training step on them takes milliseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dspark.data.answers import Answer
from dspark.drafters.config import DrafterConfig
from dspark.drafters.dspark import DSpark
from dspark.training.recipe import Recipe
from dspark.types import AFTER_NORM, TargetInfo, TargetOutput

VOCAB, WIDTH, LAYERS = 31, 16, 6


@dataclass(frozen=True)
class Rope:
    theta: float = 10_000.0


@dataclass(frozen=True)
class Shape:
    intermediate_size: int = 24
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 8
    rms_norm_eps: float = 1e-6
    rope: Rope = Rope()


class TinyTarget:
    """A causal "model": the state at a position is a running mean of embeddings, mixed differently per layer."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.embedding_weight = torch.randn(VOCAB, WIDTH, generator=generator)
        self.lm_head_weight = torch.randn(VOCAB, WIDTH, generator=generator)
        self.mixers = torch.randn(LAYERS, WIDTH, WIDTH, generator=generator) / WIDTH**0.5
        self.info = TargetInfo("tiny", VOCAB, WIDTH, LAYERS, 256, (2,), "weights", "template")
        self.config = Shape()
        self.calls = 0

    def states(self, token_ids: Tensor, lengths: Tensor, taps: Sequence[int]) -> TargetOutput:
        self.calls += 1
        x = self.embedding_weight[token_ids]
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None] + x
        last = torch.tanh(mean @ self.mixers[-1])
        features = torch.cat([last if tap == AFTER_NORM else mean @ self.mixers[tap] for tap in taps], dim=-1)
        return TargetOutput(last, features)

    def new_cache(self, capacity: int) -> "TinyCache":
        return TinyCache(capacity)

    def forward(self, token_ids: Tensor, cache: "TinyCache", taps: Sequence[int] = ()) -> TargetOutput:
        start = cache.length
        cache.tokens = torch.cat([cache.tokens, token_ids])
        assert cache.length <= cache.capacity
        output = self.states(cache.tokens[None], torch.tensor([cache.length]), taps or (0,))
        self.calls -= 1
        return TargetOutput(output.last_hidden[0, start:], output.features[0, start:])

    def logits(self, last_hidden: Tensor) -> Tensor:
        return last_hidden @ self.lm_head_weight.T

    def layer_weights(self, layer: int) -> Mapping[str, Tensor]:
        generator = torch.Generator().manual_seed(layer)
        shape = self.config
        query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        sizes = {
            "self_attn.q_proj": (query, WIDTH),
            "self_attn.k_proj": (key, WIDTH),
            "self_attn.v_proj": (key, WIDTH),
            "self_attn.o_proj": (WIDTH, query),
            "mlp.gate_proj": (shape.intermediate_size, WIDTH),
            "mlp.up_proj": (shape.intermediate_size, WIDTH),
            "mlp.down_proj": (WIDTH, shape.intermediate_size),
        }
        weights = {f"{name}.weight": torch.randn(*size, generator=generator) for name, size in sizes.items()}
        norms = {f"{name}.weight": torch.rand(WIDTH, generator=generator) for name in NORMS}
        return weights | norms


class TinyCache:
    """Keeps the tokens: the model is run over all of them each time."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = torch.zeros(0, dtype=torch.long)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rollback(self, length: int) -> None:
        self.tokens = self.tokens[:length]


NORMS = ("input_layernorm", "post_attention_layernorm")


def tiny_answers(count: int = 8) -> list[Answer]:
    generator = torch.Generator().manual_seed(3)
    answers = []
    for index in range(count):
        length = int(torch.randint(15, 30, (1,), generator=generator))
        tokens = torch.randint(3, VOCAB, (4 + length,), generator=generator).tolist()
        answers.append(Answer(f"a-{index}", "math", tuple(tokens[:4]), tuple(tokens[4:]), 0.0))
    return answers


def tiny_recipe(**optimiser: float) -> Recipe:
    return Recipe.model_validate({
        "target": "tiny",
        "drafter": {
            "num_hidden_layers": 1, "block_size": 3, "target_layer_ids": [0, 3], "mask_token_id": 1,
            "draft_vocab_size": 20, "markov_rank": 4,
        },
        "data": {
            "answers": Path("unused"), "answers_per_step": 2, "anchors_per_answer": 5, "held_out": 2,
            "teacher_top_k": 31,
        },
        "optimiser": {"learning_rate": 0.01, "warmup_steps": 1, "cooldown_steps": 2, "total_steps": 6, **optimiser},
        "blocks": [{"from_step": 0, "size": 2}, {"from_step": 3, "size": 3}],
    })  # fmt: skip


def tiny_drafter(seed: int = 0, draft_vocab_size: int | None = None, rank: int = 4) -> DSpark:
    target = TinyTarget()
    kept = None if draft_vocab_size is None else torch.arange(draft_vocab_size)
    config = DrafterConfig(
        hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=VOCAB, num_target_layers=LAYERS, target_layer_ids=(0, 3), mask_token_id=1, block_size=3,
        markov_rank=rank, enable_confidence_head=rank > 0, draft_vocab_size=draft_vocab_size,
    )  # fmt: skip
    drafter = DSpark(config, target.embedding_weight, target.lm_head_weight, kept)
    drafter.initialize(torch.Generator().manual_seed(seed), std=0.2)
    return drafter
