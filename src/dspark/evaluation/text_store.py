"""Target texts on disk: written once, replayed for every drafter."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dspark.disk import naming
from dspark.errors import CompatibilityError, FormatError
from dspark.evaluation.evaluate import whole_lines
from dspark.evaluation.target_text import Question, TargetText, TextWriter, Written
from dspark.types import SamplingParams, TargetInfo

BATCH = 32
"""Prompts whose texts are written side by side."""


class TextStore:
    """Texts in `texts.jsonl` of a directory, one line each, and their features in a file each under `features/`.

    A text is found by target hash, prompt tokens and sampling parameters. Features may be deleted: they are computed
    again when they are asked for.

    Raises:
        CompatibilityError: the target has no hash, so that its texts could not be told from another's.
    """

    def __init__(self, directory: Path, writer: TextWriter) -> None:
        if not writer.target.info.weights_hash:
            raise CompatibilityError(
                f"target {writer.target.info.name} has no hash of its weights, by which stored texts are found; "
                "load it from its files"
            )
        self.writer, self._directory = writer, directory
        self._lines = directory / "texts.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self._texts = dict(self._read()) if self._lines.exists() else {}

    @property
    def info(self) -> TargetInfo:
        """The target that writes."""
        return self.writer.target.info

    def find(self, question: Question) -> TargetText | None:
        """The text of `question`, if it is written."""
        return self._texts.get(self._key(question))

    def text(self, question: Question) -> TargetText:
        """The text of `question`, written now if it was not before. Raises as `TextWriter.write` does."""
        self.write([question])
        return self._texts[self._key(question)]

    def write(self, questions: Iterable[Question], watch: Callable[[TargetText], None] = lambda text: None) -> None:
        """Write what is missing of `questions`, long prompts beside long ones. Raises as `TextWriter.write` does."""
        missing: dict[tuple[int, ...], list[Question]] = {}
        for question in dict.fromkeys(questions):
            if self.find(question) is None:
                missing.setdefault(question.prompt_ids, []).append(question)
        prompts = sorted(missing, key=len)
        for first in range(0, len(prompts), BATCH):
            batch = [question for prompt_ids in prompts[first : first + BATCH] for question in missing[prompt_ids]]
            for written in self.writer.write(batch):
                self._add(written)
                watch(written.text)

    def features(self, text: TargetText, taps: tuple[int, ...]) -> Tensor:
        """Features [S, m * d] of `taps`, from disk or from a forward that also checks the text.

        Raises:
            FormatError: the file cannot be read.
            CompatibilityError: the text is not what this target writes.
        """
        path = self._features_path(text, taps)
        if not path.is_file():
            features = self.writer.read_again(text, taps)
            _save(path, features)
            return features
        try:
            with safe_open(path, framework="pt") as file:
                stored: Tensor = file.get_tensor("features")
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{path} holds no features: {error}. Remove it; it is made again.") from error
        return stored

    def _add(self, written: Written) -> None:
        text = written.text
        _save(self._features_path(text, self.writer.taps), written.features)
        key = self._key(text.question)
        row = {
            "key": key,
            "target": self.info.name,
            "prompt_ids": text.question.prompt_ids,
            "params": asdict(text.question.params),
            "token_ids": text.token_ids,
            "probabilities": text.probabilities,
        }
        with naming(self._lines), self._lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._texts[key] = text

    def _read(self) -> Iterator[tuple[str, TargetText]]:
        for line in whole_lines(self._lines):
            try:
                row = json.loads(line)
                yield row["key"], _from_json(row)
            except (KeyError, TypeError, ValueError) as error:
                raise FormatError(f"{self._lines} is not a store of texts: {error}. Name another directory.") from error

    def _key(self, question: Question) -> str:
        """32 hex digits of everything that decides a text."""
        params = asdict(question.params)
        del params["logprobs"]  # tells of a text, and decides nothing of it
        decides = [self.info.weights_hash, self.writer.overhang, question.prompt_ids, params]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]

    def _features_path(self, text: TargetText, taps: tuple[int, ...]) -> Path:
        name = "-".join((self._key(text.question), *map(str, taps)))
        return self._directory / "features" / f"{name}.safetensors"


def _from_json(row: dict[str, Any]) -> TargetText:
    params: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row["params"].items()}
    question = Question(tuple(row["prompt_ids"]), SamplingParams(**params))
    return TargetText(question, tuple(row["token_ids"]), tuple(row["probabilities"]))


def _save(path: Path, features: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with naming(path):
        save_file({"features": features.contiguous()}, partial)
    partial.replace(path)
