"""The order of answers and the choice of anchors: both are functions of (seed, step), so a run can resume anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.data.answers import Answer
from dspark.training.objective import SparseTeacher
from dspark.training.teacher import TeacherRecord

BUCKET = 64
"""Answers that are sorted by length together: batches get little padding, yet stay random."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded documents and their anchors. B documents, S positions, A anchors, N supervised slots.

    `features` [B, S, m * d] float32, `token_ids` [B, S], `documents` [A] and `anchors` [A] place each block.
    `supervised` [A, gamma] marks slots whose label exists; `slots` [N] and `teacher` run over the marked ones.
    """

    features: Tensor
    token_ids: Tensor
    documents: Tensor
    anchors: Tensor
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
    answers: Sequence[Answer], records: Sequence[TeacherRecord], per_answer: int, gamma: int, draft_index: Tensor | None, seed: int
) -> Batch:
    """Draw `per_answer` anchors in each answer, uniformly without replacement, and gather what they are taught.

    An anchor is a response token with a response token after it (DeepSpec's rule). `draft_index` [V] maps target ids
    to draft ids (-1 outside), None without a pruned vocabulary.
    """
    generator = torch.Generator().manual_seed(seed)
    length = max(len(answer.token_ids) for answer in answers)
    features = torch.zeros(len(answers), length, records[0].features.shape[1])
    tokens = torch.zeros(len(answers), length, dtype=torch.long)
    places, slots, ids, probabilities, marks = [], [], [], [], []
    for b, (answer, record) in enumerate(zip(answers, records, strict=True)):
        features[b, : len(record.features)] = record.features.float()
        tokens[b, : len(answer.token_ids)] = torch.tensor(answer.token_ids)
        response = len(answer.response_ids)
        chosen = torch.randperm(response - 1, generator=generator)[:per_answer].sort().values
        rows = chosen[:, None] + torch.arange(1, gamma + 1)
        marked = rows < response
        places.append(torch.stack((torch.full_like(chosen, b), chosen + len(answer.prompt_ids))))
        slots.append(torch.arange(gamma).expand_as(rows)[marked])
        ids.append(record.ids[rows[marked]].long())
        probabilities.append(record.probabilities[rows[marked]].float())
        marks.append(marked)
    documents, anchors = torch.cat(places, dim=1)
    teacher = draft_teacher(torch.cat(ids), torch.cat(probabilities), draft_index)
    return Batch(features, tokens, documents, anchors, torch.cat(marks), torch.cat(slots), teacher)


def draft_teacher(ids: Tensor, probabilities: Tensor, draft_index: Tensor | None) -> SparseTeacher:
    """Teacher rows in draft ids; tokens outside the draft vocabulary keep their row but lose their probability."""
    if draft_index is None:
        return SparseTeacher(ids, probabilities)
    mapped = draft_index[ids]
    return SparseTeacher(mapped.clamp(min=0), probabilities.masked_fill(mapped < 0, 0.0))
