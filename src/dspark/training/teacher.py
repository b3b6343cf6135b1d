"""What a frozen target tells its students about one answer: tapped features and its next-token distribution.

The target runs inside the training step. Records may be kept in a directory, so that later epochs, a resumed run or
a second student find them there; without one, nothing is stored and every epoch runs the target again.

Shapes: S tokens of prompt and response, P of them prompt, n = S - P response tokens, m taps, d width, K teacher tokens.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspark.data.answers import Answer
from dspark.errors import CompatibilityError, FormatError
from dspark.types import TargetInfo, TargetOutput

_TENSORS = ("features", "ids", "probabilities")


class TeacherTarget(Protocol):
    """The part of a target that training needs: states of a padded batch, and the LM head."""

    info: TargetInfo

    def states(self, token_ids: Tensor, lengths: Tensor, taps: Sequence[int]) -> TargetOutput: ...

    def logits(self, last_hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class TeacherRecord:
    """One answer as its students see it.

    `features` [S, m * d] bf16 at every position. Row j of `ids` and `probabilities` [n, K] is the target's
    distribution (temperature 1) of response token j given all before it, cut to its K likeliest tokens.
    """

    features: Tensor
    ids: Tensor
    probabilities: Tensor


@dataclass(frozen=True, slots=True)
class Teacher:
    """Makes teacher records of answers, or finds them in `directory` if they were made before."""

    target: TeacherTarget
    taps: tuple[int, ...]
    top_k: int = 64
    directory: Path | None = None

    def records(self, answers: Sequence[Answer]) -> list[TeacherRecord]:
        """One record per answer, in order; missing ones are computed together in one padded batch."""
        found = {i: record for i, a in enumerate(answers) if (record := self._stored(a)) is not None}
        missing = [i for i in range(len(answers)) if i not in found]
        if missing:
            fresh = self._compute([answers[i] for i in missing])
            found |= dict(zip(missing, fresh, strict=True))
            for i in missing:
                self._store(answers[i], found[i])
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

    def origin(self, answer: Answer) -> dict[str, str]:
        """What a record of `answer` was made from: kept in its file, and compared when the file is read."""
        return {
            "target": self.target.info.weights_hash,
            "taps": ",".join(map(str, self.taps)),
            "top_k": str(self.top_k),
            "tokens": token_digest(answer),
        }

    def _path(self, answer: Answer) -> Path | None:
        return None if self.directory is None else self.directory / f"{token_digest(answer)}.safetensors"

    def _stored(self, answer: Answer) -> TeacherRecord | None:
        path = self._path(answer)
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                origin = file.metadata() or {}
                record = TeacherRecord(*(file.get_tensor(name) for name in _TENSORS))
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{path} is not a teacher record: {error}. Remove it; it is made again.") from error
        _check_origin(path, origin, self.origin(answer))
        return record

    def _store(self, answer: Answer, record: TeacherRecord) -> None:
        path = self._path(answer)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        # The features are a view of a padded batch: safetensors wants memory of their own.
        tensors = {name: getattr(record, name).contiguous() for name in _TENSORS}
        save_file(tensors, partial, metadata=self.origin(answer))
        partial.replace(path)


def token_digest(answer: Answer) -> str:
    """32 hex digits of the prompt's and the response's token ids; the name of the answer's record."""
    tokens = json.dumps([answer.prompt_ids, answer.response_ids])
    return hashlib.sha256(tokens.encode()).hexdigest()[:32]


def _check_origin(path: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    different = [
        f"{key} {found.get(key)!r}, expected {value!r}" for key, value in expected.items() if found.get(key) != value
    ]
    if different:
        raise CompatibilityError(
            f"{path} was made for {'; '.join(different)}. Use another directory, or empty this one."
        )
