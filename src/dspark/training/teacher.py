"""What a frozen target tells its students about one answer: tapped features and its next-token distribution.

The target runs inside the training step. Records may be kept in a feature store, so that later epochs, a resumed run
or a second student find them there; without one, nothing is stored and every epoch runs the target again.

Shapes: S tokens of prompt and response, P of them prompt, n = S - P response tokens, m taps, d width, K teacher tokens.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dspark.data.answers import Answer
from dspark.data.feature_store import FeatureStore
from dspark.data.teacher_record import FeaturePrecision, TeacherRecord, kept_tensors, restored
from dspark.types import TargetInfo, TargetOutput


class TeacherTarget(Protocol):
    """The part of a target that training needs: states of a padded batch, and the LM head."""

    info: TargetInfo

    def states(self, token_ids: Tensor, lengths: Tensor, taps: Sequence[int]) -> TargetOutput: ...

    def logits(self, last_hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Teacher:
    """Makes teacher records of answers, or finds them in `store` if they were made before.

    Whether there is a store changes nothing that a block reads: fresh records go through `precision`, too.
    """

    target: TeacherTarget
    taps: tuple[int, ...]
    top_k: int = 64
    store: FeatureStore | None = None
    precision: FeaturePrecision = FeaturePrecision.BF16

    def records(self, answers: Sequence[Answer]) -> list[TeacherRecord]:
        """One record per answer, in order; missing ones are computed together in one padded batch."""
        found = {i: record for i, a in enumerate(answers) if (record := self._stored(a)) is not None}
        missing = [i for i in range(len(answers)) if i not in found]
        if missing:
            fresh = self._compute([answers[i] for i in missing])
            found |= {i: self._kept(answers[i], record) for i, record in zip(missing, fresh, strict=True)}
        return [found[i] for i in range(len(answers))]

    @torch.no_grad()
    def _compute(self, answers: Sequence[Answer]) -> list[TeacherRecord]:
        lengths = torch.tensor([len(a.token_ids) for a in answers])
        tokens = torch.zeros(len(answers), int(lengths.max()), dtype=torch.long)
        for row, answer in zip(tokens, answers, strict=True):
            row[: len(answer.token_ids)] = torch.tensor(answer.token_ids)
        output = self.target.states(tokens, lengths, self.taps)
        return [
            self._record(answer, output.features[b, : len(answer.token_ids)], output.last_hidden[b])
            for b, answer in enumerate(answers)
        ]

    def _record(self, answer: Answer, features: Tensor, last_hidden: Tensor) -> TeacherRecord:
        first, end = len(answer.prompt_ids), len(answer.token_ids)
        p_t = torch.softmax(self.target.logits(last_hidden[first - 1 : end - 1]), dim=-1)
        top = p_t.topk(min(self.top_k, p_t.shape[-1]), dim=-1)
        return TeacherRecord(features.to(torch.bfloat16), top.indices.int(), top.values.half())

    def _stored(self, answer: Answer) -> TeacherRecord | None:
        tensors = None if self.store is None else self.store.read(token_digest(answer))
        return None if tensors is None else _restored(tensors, answer)

    def _kept(self, answer: Answer, record: TeacherRecord) -> TeacherRecord:
        tensors = kept_tensors(record, self.precision)
        if self.store is not None:
            self.store.write(token_digest(answer), tensors)
        return _restored(tensors, answer)


def teacher_store(directory: Path, target: TargetInfo, taps: Sequence[int], top_k: int, precision: str) -> FeatureStore:
    """The store in `directory` for records of such a teacher; those of any other are refused there."""
    origin = {
        "target": target.weights_hash,
        "taps": ",".join(map(str, taps)),
        "top_k": str(top_k),
        "precision": precision,
    }
    return FeatureStore(directory, origin)


def token_digest(answer: Answer) -> str:
    """32 hex digits of the prompt's and the response's token ids; the key of the answer's record."""
    tokens = json.dumps([answer.prompt_ids, answer.response_ids])
    return hashlib.sha256(tokens.encode()).hexdigest()[:32]


def _restored(tensors: Mapping[str, Tensor], answer: Answer) -> TeacherRecord:
    return restored(tensors, len(answer.token_ids), len(answer.response_ids))
