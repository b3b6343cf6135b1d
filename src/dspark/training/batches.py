"""The order of answers and the choice of anchors: both are functions of (seed, step), so a run can resume anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.core.anchors import block_labels, sample_anchors
from dspark.core.masks import BlockLayout
from dspark.data.answers import Answer
from dspark.data.teacher_record import TeacherRecord
from dspark.training.objective import SparseTeacher

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


def steps_per_epoch(count: int, per_step: int) -> int:
    """How often `per_step` of `count` answers can be drawn before one comes again; the rest waits for another epoch."""
    return max(1, count // per_step)


def batch_indices(count: int, per_step: int, lengths: Sequence[int], seed: int, step: int) -> list[int]:
    """Which answers `step` sees: every epoch is a fresh shuffle, in batches of similar length."""
    steps = steps_per_epoch(count, per_step)
    epoch, position = divmod(step, steps)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    buckets = [sorted(order[i : i + BUCKET], key=lambda index: lengths[index]) for i in range(0, count, BUCKET)]
    flat = [index for bucket in buckets for index in bucket]
    chosen = int(torch.randperm(steps, generator=generator)[position])
    return flat[chosen * per_step : (chosen + 1) * per_step]


def make_batch(
    answers: Sequence[Answer],
    records: Sequence[TeacherRecord],
    per_answer: int,
    gamma: int,
    draft_index: Tensor | None,
    seed: int,
) -> Batch:
    """A batch of `draw_anchors(answers, per_answer, seed)`."""
    return gather_batch(answers, records, draw_anchors(answers, per_answer, seed), gamma, draft_index)


def draw_anchors(answers: Sequence[Answer], per_answer: int, seed: int) -> list[Tensor]:
    """Up to `per_answer` ascending positions in each answer, uniform without replacement.

    They are drawn for all answers of a step, however it is divided: every division trains the same slots.
    """
    generator = torch.Generator().manual_seed(seed)
    return [sample_anchors(_responses(answer), per_answer, generator) for answer in answers]


def gather_batch(
    answers: Sequence[Answer],
    records: Sequence[TeacherRecord],
    places: Sequence[Tensor],
    gamma: int,
    draft_index: Tensor | None,
) -> Batch:
    """What the anchors at `places` of each answer are taught.

    Anchors and labels are those of `core.anchors` with the loss on response tokens (DeepSpec's rule). `draft_index` [V]
    maps target ids to draft ids (-1 outside), None without a pruned vocabulary.
    """
    lengths = tuple(len(answer.token_ids) for answer in answers)
    tokens = torch.tensor([token for answer in answers for token in answer.token_ids])
    responses = torch.cat([_responses(answer) for answer in answers])
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0).tolist()
    anchors = torch.cat([start + place for start, place in zip(starts, places, strict=True)])
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


def taught_tokens(answer: Answer, places: Tensor, gamma: int) -> Tensor:
    """Ascending response tokens, counted from 0, that blocks of `gamma` slots at anchors `places` are taught."""
    positions: Tensor = torch.unique((places[:, None] + torch.arange(1, gamma + 1)).flatten())
    return positions[positions < len(answer.token_ids)] - len(answer.prompt_ids)


def _responses(answer: Answer) -> Tensor:
    """[S] where tokens carry loss."""
    return torch.arange(len(answer.token_ids)) >= len(answer.prompt_ids)


def draft_teacher(ids: Tensor, probabilities: Tensor, draft_index: Tensor | None) -> SparseTeacher:
    """Teacher rows in draft ids; tokens outside the draft vocabulary keep their row but lose their probability."""
    if draft_index is None:
        return SparseTeacher(ids, probabilities)
    mapped = draft_index[ids]
    return SparseTeacher(mapped.clamp(min=0), probabilities.masked_fill(mapped < 0, 0.0))
