"""Answers of a target to training prompts, as exact token ids."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dspark.errors import CompatibilityError, ConfigError, FormatError

MIN_RESPONSE_TOKENS = 14
"""Shorter answers teach nothing about blocks; DeepSpec drops them too."""

_REGENERATE = "Regenerate the answers with this target (dspark data regenerate)."


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: `prompt_ids` is the rendered chat, `response_ids` what the target wrote, its end token included."""

    id: str
    domain: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    temperature: float

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and response in one sequence."""
        return self.prompt_ids + self.response_ids


@dataclass(frozen=True, slots=True)
class AnswerSplit:
    """Answers that a training may learn from, and `held_out` ones that it is measured on and must not see."""

    train: tuple[Answer, ...]
    held_out: tuple[Answer, ...]


def split_answers(answers: Sequence[Answer], held_out: int) -> AnswerSplit:
    """Hold the first `held_out` answers out: they stay the same when answers are added behind them.

    Raises:
        ConfigError: nothing would be left to train on.
    """
    if held_out >= len(answers):
        raise ConfigError(f"{held_out} answers are to be held out of {len(answers)}; lower data.held_out.")
    return AnswerSplit(tuple(answers[held_out:]), tuple(answers[:held_out]))


def read_answers(
    path: Path,
    *,
    max_temperature: float = float("inf"),
    max_length: int = 1024,
    template_hash: str = "",
    vocab_size: int | None = None,
) -> list[Answer]:
    """Answers of a JSONL file (optionally .gz) that were sampled at most at `max_temperature`.

    Longer sequences are cut to `max_length` tokens, which supervises nothing false: no end token is added. Answers
    with fewer than `MIN_RESPONSE_TOKENS` left are dropped.

    Raises:
        FormatError: the file is missing or malformed (the line is named), or no answer is left.
        CompatibilityError: an answer tells that its chat was rendered by another template than `template_hash`'s, or
            has tokens that no target of `vocab_size` knows.
    """
    answers = []
    for number, row in numbered_jsonl(path):
        _check_template(row, f"{path}, line {number}", template_hash)
        answers.append(_answer(row, path, number, max_length))
        _check_tokens(answers[-1], f"{path}, line {number}", vocab_size)
    kept = [a for a in answers if a.temperature <= max_temperature and len(a.response_ids) >= MIN_RESPONSE_TOKENS]
    if not kept:
        raise FormatError(
            f"{path} holds no usable answer among {len(answers)}. Expected some at temperature <= {max_temperature} "
            f"with {MIN_RESPONSE_TOKENS} response tokens or more."
        )
    return kept


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, decompressed if its name ends in .gz."""
    return (row for _, row in numbered_jsonl(path))


def numbered_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same with the number of each line, from 1; empty lines count.

    Raises:
        FormatError: the file is missing, or a line holds no object.
    """
    if not path.is_file():
        raise FormatError(f"{path} does not exist. Expected a JSONL file, one object a line.")
    with _open_text(path) as lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _object(line, path, number)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise FormatError(f"{path} cannot be read as UTF-8 JSONL: {error}.") from error


def _open_text(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}, line {number} is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise FormatError(f"{path}, line {number} holds a {type(row).__name__}, expected an object.")
    return row


def _check_template(row: dict[str, Any], where: str, expected: str) -> None:
    found = row.get("template_hash")
    if found and expected and found != expected:
        raise CompatibilityError(
            f"{where} was rendered with chat template {found}, the target's is {expected}. {_REGENERATE}"
        )


def _check_tokens(answer: Answer, where: str, vocab_size: int | None) -> None:
    tokens = answer.token_ids
    if vocab_size is not None and tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        strange = next(token for token in tokens if not 0 <= token < vocab_size)
        raise CompatibilityError(
            f"{where} has token {strange}, the target's vocabulary is [0, {vocab_size}). {_REGENERATE}"
        )


def _answer(row: dict[str, Any], path: Path, number: int, max_length: int) -> Answer:
    try:
        prompt = tuple(int(token) for token in row["prompt_ids"])
        response = tuple(int(token) for token in row["response_ids"])[: max(0, max_length - len(prompt))]
        return Answer(str(row["id"]), str(row["domain"]), prompt, response, float(row.get("temperature", 0.0)))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path}, line {number}: bad or missing field {error}. "
            "Expected id, domain, prompt_ids, response_ids, temperature."
        ) from error
