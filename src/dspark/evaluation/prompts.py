"""Evaluation prompts: JSONL files with `id`, `domain` and `turns`."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.data.answers import numbered_jsonl
from dspark.errors import FormatError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to be answered: `turns` are the user's messages."""

    id: str
    domain: str
    turns: tuple[str, ...]

    @property
    def digest(self) -> str:
        """First 16 hex digits of the sha256 of the turns: tells prompts apart whatever they are called."""
        return hashlib.sha256("\0".join(self.turns).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """A named list of prompts, `gsm8k` for a file gsm8k.jsonl."""

    name: str
    prompts: tuple[Prompt, ...]


def read_prompt_set(path: Path, limit: int | None = None) -> PromptSet:
    """The first `limit` prompts of a file (all if None)."""
    rows = list(numbered_jsonl(path))[:limit]
    if not rows:
        raise FormatError(f"{path} holds no prompts. Expected one JSON object a line with id, domain and turns.")
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    prompts = tuple(_prompt(row, path, number) for number, row in rows)
    _refuse_duplicates([prompt.id for prompt in prompts], f"{path}: prompt id")
    return PromptSet(name, prompts)


def read_prompt_sets(paths: Sequence[Path], limit: int | None = None) -> list[PromptSet]:
    """Prompt sets of files, or of all .jsonl files of a directory in name order."""
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    if not files:
        raise FormatError(f"{', '.join(map(str, paths))}: no .jsonl file there. Expected prompt sets.")
    sets = [read_prompt_set(file, limit) for file in files]
    _refuse_duplicates([one.name for one in sets], "Prompt set")
    return sets


def _refuse_duplicates(names: Sequence[str], what: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise FormatError(f"{what} {repeated[0]!r} occurs more than once; give each its own name.")


def _prompt(row: dict[str, Any], path: Path, number: int) -> Prompt:
    turns = row.get("turns", [row["prompt"]] if isinstance(row.get("prompt"), str) else None)
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise FormatError(f"{path}, line {number}: expected `turns`, a non-empty list of strings, found {turns!r}.")
    return Prompt(str(row.get("id", f"{path.stem}-{number}")), str(row.get("domain", "")), tuple(turns))
