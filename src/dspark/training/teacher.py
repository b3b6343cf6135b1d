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
from dspark.training.hidden_states import LocalStates, SequenceStates, StateSource, StatesTarget
from dspark.types import TargetInfo


class TeacherTarget(StatesTarget, Protocol):
    """The part of a target that training needs: states of a padded batch, and the LM head."""

    info: TargetInfo

    def logits(self, last_hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Teacher:
    """Makes teacher records of answers, or finds them in `store` if they were made before.

    Whether there is a store changes nothing that a block reads: fresh records go through `precision`, too. The target
    runs here, or wherever `source` asks for its states; its LM head always runs here.
    """

    target: TeacherTarget
    taps: tuple[int, ...]
    top_k: int = 64
    store: FeatureStore | None = None
    precision: FeaturePrecision = FeaturePrecision.BF16
    source: StateSource | None = None

    def records(self, answers: Sequence[Answer], wanted: Sequence[Tensor] | None = None) -> list[TeacherRecord]:
        """One record per answer, in order; missing ones are computed together in one padded batch.

        `wanted` [R] of each answer are the response tokens whose distributions will be read: the LM head runs for
        these alone, and the others' probabilities are NaN. Without it, and where there is a store, it runs for all.
        """
        found = {i: record for i, a in enumerate(answers) if (record := self._stored(a)) is not None}
        missing = [i for i in range(len(answers)) if i not in found]
        if missing:
            rows = None if wanted is None or self.store is not None else [wanted[i] for i in missing]
            fresh = self._compute([answers[i] for i in missing], rows)
            found |= {i: self._kept(answers[i], record) for i, record in zip(missing, fresh, strict=True)}
        return [found[i] for i in range(len(answers))]

    @torch.no_grad()
    def _compute(self, answers: Sequence[Answer], wanted: Sequence[Tensor] | None) -> list[TeacherRecord]:
        rows = [torch.arange(len(answer.response_ids)) for answer in answers] if wanted is None else wanted
        # A token's distribution comes from the state before it.
        places = [len(answer.prompt_ids) - 1 + own for answer, own in zip(answers, rows, strict=True)]
        source = LocalStates(self.target) if self.source is None else self.source
        found = source.states([answer.token_ids for answer in answers], places, self.taps)
        return [self._record(*each) for each in zip(answers, rows, found, strict=True)]

    def _record(self, answer: Answer, rows: Tensor, states: SequenceStates) -> TeacherRecord:
        p_t = torch.softmax(self.target.logits(states.last_hidden), dim=-1)
        top = p_t.topk(min(self.top_k, p_t.shape[-1]), dim=-1)
        shape = len(answer.response_ids), top.indices.shape[1]
        ids = torch.zeros(shape, dtype=torch.int32).index_copy_(0, rows, top.indices.int())
        probabilities = torch.full(shape, torch.nan, dtype=torch.half).index_copy_(0, rows, top.values.half())
        return TeacherRecord(states.features, ids, probabilities)

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
