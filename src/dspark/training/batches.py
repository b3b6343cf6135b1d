"""The order of answers and the choice of anchors: both are functions of (seed, step), so a run can resume anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.core.anchors import block_labels, sample_packed_anchors
from dspark.core.masks import BlockLayout
from dspark.data.answers import Answer
from dspark.training.objective import SparseTeacher
from dspark.training.teacher import TeacherRecord

BUCKET = 64
"""Answers that are sorted by length together: batches get little padding, yet stay random."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents packed end to end, and their anchors. T packed positions, A anchors, N supervised slots.

    `features` [T, m * d] and `token_ids` [T] belong to documents of `lengths` tokens; `anchors` [A] are ascending
    packed positions. `previous` [A, gamma] is the token before each slot's label (slot 0: the anchor itself).
    `supervised` [A, gamma] marks slots whose label exists; `slots` [N] and `teacher` run over the marked ones.
    """

    features: Tensor
    token_ids: Tensor
    lengths: tuple[int, ...]
    anchors: Tensor
    previous: Tensor
    supervised: Tensor
    slots: Tensor
    teacher: SparseTeacher


def batch_indices(count: int, per_step: int, lengths: Sequence[int], seed: int, step: int) -> list[int]:
    """Which answers `step` sees: every epoch is a fresh shuffle, in batches of similar length."""
    steps_per_epoch = max(1, count // per_step)
    epoch, position = divmod(step, steps_per_epoch)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    buckets = [sorted(order[i : i + BUCKET], key=lambda index: lengths[index]) for i in range(0, count, BUCKET)]
    flat = [index for bucket in buckets for index in bucket]
    chosen = int(torch.randperm(steps_per_epoch, generator=generator)[position])
    return flat[chosen * per_step : (chosen + 1) * per_step]


def make_batch(
    answers: Sequence[Answer],
    records: Sequence[TeacherRecord],
    per_answer: int,
    gamma: int,
    draft_index: Tensor | None,
    seed: int,
) -> Batch:
    """Draw up to `per_answer` anchors in each answer, uniformly without replacement, and gather what they are taught.

    Anchors and labels are those of `core.anchors` with the loss on response tokens (DeepSpec's rule). `draft_index` [V]
    maps target ids to draft ids (-1 outside), None without a pruned vocabulary.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = tuple(len(answer.token_ids) for answer in answers)
    tokens = torch.tensor([token for answer in answers for token in answer.token_ids])
    responses = torch.cat([torch.arange(n) >= len(a.prompt_ids) for a, n in zip(answers, lengths, strict=True)])
    anchors = sample_packed_anchors(responses, lengths, per_answer, generator)
    labels = block_labels(tokens, responses, BlockLayout.pack(anchors, lengths, gamma))
    slots = torch.arange(gamma).expand_as(labels.supervised)[labels.supervised]
    taught = (anchors[:, None] + torch.arange(1, gamma + 1))[labels.supervised]
    # Records have a row per response token: the packed rows are numbered by counting these.
    rows = (responses.cumsum(0) - 1)[taught]
    ids = torch.cat([record.ids for record in records])[rows].long()
    probabilities = torch.cat([record.probabilities for record in records])[rows].float()
    return Batch(
        features=torch.cat([record.features for record in records]).float(),
        token_ids=tokens,
        lengths=lengths,
        anchors=anchors,
        previous=labels.previous,
        supervised=labels.supervised,
        slots=slots,
        teacher=draft_teacher(ids, probabilities, draft_index),
    )


def draft_teacher(ids: Tensor, probabilities: Tensor, draft_index: Tensor | None) -> SparseTeacher:
    """Teacher rows in draft ids; tokens outside the draft vocabulary keep their row but lose their probability."""
    if draft_index is None:
        return SparseTeacher(ids, probabilities)
    mapped = draft_index[ids]
    return SparseTeacher(mapped.clamp(min=0), probabilities.masked_fill(mapped < 0, 0.0))
