"""Answers, features and drafters of the embedded target's shape, made up: a step's cost does not depend on values.

Lengths are drawn like those of the embedded target's own answers: prompts of 40 to 160 tokens, responses of 60 to 340.
"""

import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dspark.data.answers import Answer
from dspark.data.teacher_record import TeacherRecord
from dspark.drafters.config import DrafterConfig
from dspark.drafters.dspark import DSpark
from dspark.training.batches import draw_anchors

TOP_K = 64
TAPS = (1, 8, 15, 22, 28)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one step sees, and the target's vocabulary; the drafter's is `draft_vocabulary`, None for all of it."""

    answers: int = 2
    anchors: int = 128
    gamma: int = 7
    vocabulary: int = 49_152
    draft_vocabulary: int | None = None
    width: int = 576
    taps: tuple[int, ...] = TAPS
    layers: int = 3
    prompt: tuple[int, int] = (40, 160)
    response: tuple[int, int] = (60, 340)
    heads: tuple[int, int, int] = field(default=(9, 3, 64))
    inner: int = 1536
    rank: int = 128


@dataclass(frozen=True, slots=True)
class Document:
    """An answer, what its teacher said, and the target's last hidden states [S, d], which whole laws come from."""

    answer: Answer
    record: TeacherRecord
    last_hidden: Tensor


def drafter(sizes: Sizes) -> DSpark:
    """A fresh DSpark with Markov and confidence head, as the recipe of the embedded target shapes it."""
    heads, kv_heads, head_dim = sizes.heads
    generator = torch.Generator().manual_seed(0)
    config = DrafterConfig(
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=sizes.vocabulary,
        num_target_layers=max(sizes.taps) + 2,
        target_layer_ids=sizes.taps,
        mask_token_id=16,
        block_size=sizes.gamma,
        markov_rank=sizes.rank,
        enable_confidence_head=True,
        draft_vocab_size=sizes.draft_vocabulary,
    )
    table = torch.randn(sizes.vocabulary, sizes.width, generator=generator).div_(sizes.width**0.5)
    kept = None if sizes.draft_vocabulary is None else torch.arange(sizes.draft_vocabulary)
    module = DSpark(config, table, table, kept)
    module.initialize(generator)
    return module


def documents(sizes: Sizes, step: int) -> list[Document]:
    """The answers of `step`; the same for every arm."""
    generator = torch.Generator().manual_seed(step)
    return [_document(sizes, generator) for _ in range(sizes.answers)]


def _document(sizes: Sizes, generator: torch.Generator) -> Document:
    prompt, response = (
        int(torch.randint(*bounds, (1,), generator=generator)) for bounds in (sizes.prompt, sizes.response)
    )
    tokens = torch.randint(0, sizes.vocabulary, (prompt + response,), generator=generator).tolist()
    answer = Answer("made up", "none", tuple(tokens[:prompt]), tuple(tokens[prompt:]), 0.0)
    features = torch.randn(prompt + response, len(sizes.taps) * sizes.width, generator=generator).bfloat16()
    known = sizes.draft_vocabulary or sizes.vocabulary
    ids = torch.randint(0, known, (response, min(TOP_K, known)), generator=generator).int()
    weights = torch.rand(ids.shape, generator=generator).sort(-1, descending=True).values
    record = TeacherRecord(features, ids, (0.95 * weights / weights.sum(-1, keepdim=True)).half())
    return Document(answer, record, torch.randn(prompt + response, sizes.width, generator=generator))


def anchors_of(documents: Sequence[Document], sizes: Sizes, step: int) -> list[Tensor]:
    """Anchors of each document, drawn as the trainer draws them."""
    return draw_anchors([document.answer for document in documents], sizes.anchors, step)


def resident_bytes() -> int:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
