"""Models on a device beside the same models on the CPU in float32, for `gpu_check.py`."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dspark.data.chat import user_turn
from dspark.drafters.config import DrafterConfig
from dspark.drafters.dspark import DSpark
from dspark.drafters.packing import pack_drafter
from dspark.engine.models import Models, open_models
from dspark.nn.device import CPU
from dspark.nn.linear import PlainKernel
from dspark.nn.paged_attention import PagedAttention, choose_attention
from dspark.targets.config import DecoderConfig
from dspark.targets.native import NativeTarget
from dspark.targets.registry import DtypeName, load_target, parse_dtype
from dspark.targets.weights import expected_shapes
from dspark.types import TargetInfo

QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that reverses a list.",
    "If a train goes 60 km in 45 minutes, how fast is it?",
    "Tell me a short story about a lighthouse.",
    "Explain why the sky is blue.",
    "Give me three tips for learning a language.",
    "Translate 'good morning' to Spanish, Italian and German.",
    "Summarise how a bill becomes a law.",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A target and its drafter on a device, the same on the CPU, and prompts."""

    target: NativeTarget
    drafter: DSpark
    reference: NativeTarget
    reference_drafter: DSpark
    prompts: list[list[int]]

    def ids(self, count: int, seed: int) -> Tensor:
        """Token ids [count] on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.target.info.vocab_size, (count,), generator=generator)


def open_subject(name: str, drafter: str | None, dtype: DtypeName, device: torch.device, tiny: bool) -> Subject:
    """The models of `name` on `device`, their weights rounded to `dtype`; or `tiny` random ones."""
    return _tiny(parse_dtype(dtype), device) if tiny else _loaded(name, drafter, dtype, device)


def _loaded(name: str, drafter: str | None, dtype: DtypeName, device: torch.device) -> Subject:
    models = open_models(name, drafter, dtype, device)
    target, module = _checked(models)
    reference = load_target(name, "fp32", "plain")
    beside = replace(models, target=reference).beside(models.speculative()[1])
    prompts = [models.codec.encode_chat(user_turn(question)) for question in QUESTIONS]
    return Subject(target, module, *_checked(beside), prompts)


def _checked(models: Models) -> tuple[NativeTarget, DSpark]:
    target, drafter = models.target, models.speculative()[0]
    if not isinstance(target, NativeTarget) or not isinstance(drafter, DSpark):
        raise SystemExit("this check is of native targets and DSpark or DFlash drafters")
    return target, drafter


V, WIDTH, LAYERS, GAMMA, POSITIONS = 97, 32, 3, 4, 320


def _tiny(dtype: torch.dtype, device: torch.device) -> Subject:
    target, drafter = _random_models(dtype, device, choose_attention(device, dtype, WIDTH // 4))
    reference, reference_drafter = _random_models(torch.float32, CPU, None)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(V - 1, (9 + i,), generator=generator).tolist() for i in range(4)]
    return Subject(target, drafter, reference, reference_drafter, prompts)


def _random_models(
    dtype: torch.dtype, device: torch.device, attention: PagedAttention | None
) -> tuple[NativeTarget, DSpark]:
    """The same numbers wherever they live; the drafter's embedding and head are the target's."""
    sizes = {"model_type": "llama", "vocab_size": V, "hidden_size": WIDTH, "intermediate_size": 48,
             "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": POSITIONS}  # fmt: skip
    config, generator = DecoderConfig.parse(sizes), torch.Generator().manual_seed(1)
    weights = {
        name: (torch.randn(shape, generator=generator) * (0.2 if len(shape) > 1 else 0.1) + (len(shape) == 1)).to(
            device, dtype
        )
        for name, shape in expected_shapes(config).items()
    }
    info = TargetInfo("tiny", V, WIDTH, LAYERS, POSITIONS, ())
    target = NativeTarget(config, info, weights, PlainKernel(dtype), dtype, attention)
    shape = DrafterConfig(
        hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=V, num_target_layers=LAYERS, target_layer_ids=(-1, 0), mask_token_id=V - 1,
        block_size=GAMMA, markov_rank=8, enable_confidence_head=True,
    )  # fmt: skip
    drafter = DSpark(shape, target.embedding_weight.float().cpu(), target.lm_head_weight.float().cpu())
    drafter.initialize(torch.Generator().manual_seed(2), std=0.2)
    drafter = drafter.to(device, dtype).eval().requires_grad_(False)
    drafter.attention = attention
    return target, pack_drafter(drafter, PlainKernel(dtype))
