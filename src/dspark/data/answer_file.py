"""A file of answers that survives interruption: a journal while it grows, the answers in input order when it rests."""

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from dspark.data.answer_row import StoredAnswer
from dspark.disk import naming
from dspark.errors import CompatibilityError, FormatError


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line lies in the journal."""

    start: int
    size: int


class AnswerFile:
    """Answers by id at `path` (.gz is compressed), each on disk as soon as it is added.

    New lines are appended to `path`.partial, the journal, in whatever order they come. `arrange` puts them into `path`
    in the order of the prompts, whole or not at all, so that an interrupted and resumed file is that of one run. After
    a kill, the journal holds everything.

    Raises:
        CompatibilityError: the answers there have another `provenance`.
        FormatError: `path` or its journal is not a file of regenerated answers.
    """

    def __init__(self, path: Path, provenance: Mapping[str, Any]) -> None:
        self.path, self._provenance = path, provenance
        self._journal = path.with_name(f"{path.name}.partial")
        self._places: dict[str, _Place] = {}
        self._changed = self._journal.exists()
        self._stream: FileIO | None = None
        if self._changed:
            self._read(self._journal)
        elif path.exists():
            self._restore()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, answer_id: str) -> bool:
        return answer_id in self._places

    def find(self, answer_id: str) -> StoredAnswer | None:
        """The answer called `answer_id`, if it is there."""
        place = self._places.get(answer_id)
        if place is None:
            return None
        row = json.loads(self._line(place))
        return StoredAnswer(row["conversation"], row["response"], row["finish_reason"])

    def add(self, row: Mapping[str, Any]) -> None:
        """Append the row of a new answer at once. Raises OSError with the file's name if the disk is full."""
        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
        stream = self._opened()
        start = stream.seek(0, os.SEEK_END)
        with naming(self._journal):
            try:
                _write_all(stream, line)
            except OSError:
                stream.truncate(start)
                raise
        self._places[row["id"]] = _Place(start, len(line))
        self._changed = True

    def arrange(self, order: Iterable[str]) -> None:
        """Write `path`: the answers in `order`, then those that are not asked for any more. Removes the journal."""
        if self._changed:
            present = [answer_id for answer_id in dict.fromkeys(order) if answer_id in self._places]
            known = set(present)
            rest = [answer_id for answer_id in self._places if answer_id not in known]
            self._write([*present, *rest])
            self._changed = False
        self.close()
        self._journal.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the journal; it stays on disk unless `arrange` removed it."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _write(self, answer_ids: Iterable[str]) -> None:
        fresh = self.path.with_name(f"{self.path.name}.arranged")
        try:
            with naming(fresh), _binary_writer(fresh, self.path.suffix == ".gz") as output:
                output.writelines(self._line(self._places[answer_id]) for answer_id in answer_ids)
            fresh.replace(self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def _restore(self) -> None:
        """Make the journal from a file at rest, whole or not at all."""
        fresh = self._journal.with_name(f"{self._journal.name}.restored")
        try:
            with naming(fresh), _binary_reader(self.path) as source, fresh.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            fresh.unlink()
            raise FormatError(
                f"{self.path} cannot be decompressed: {error}. Remove it or name another file."
            ) from error
        fresh.replace(self._journal)
        self._read(self._journal)

    def _read(self, journal: Path) -> None:
        """Index the lines; one that a kill cut short is removed."""
        with journal.open("rb") as lines:
            start = 0
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                self._index(line, _Place(start, len(line)), number)
                start += len(line)
        if start < journal.stat().st_size:
            os.truncate(journal, start)

    def _index(self, line: bytes, place: _Place, number: int) -> None:
        try:
            row = json.loads(line)
            found = {key: row[key] for key in self._provenance}
            self._places[row["id"]] = place
            StoredAnswer(row["conversation"], row["response"], row["finish_reason"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"{self.path}, line {number} is no regenerated answer ({error!r}). Remove the file or name another."
            ) from error
        different = [key for key in found if found[key] != self._provenance[key]]
        if different:
            key = different[0]
            raise CompatibilityError(
                f"{self.path} holds answers with {key} {found[key]!r}, this run has {self._provenance[key]!r}. "
                "Name another file."
            )

    def _line(self, place: _Place) -> bytes:
        stream = self._opened()
        stream.seek(place.start)
        return stream.read(place.size)

    def _opened(self) -> FileIO:
        if self._stream is None:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._journal.open("a+b", buffering=0)
        return self._stream


class ErrorFile:
    """Questions that found no answer, beside the answers; made anew by each run, absent if all went well."""

    def __init__(self, answers: Path) -> None:
        name = answers.name.removesuffix(".gz").removesuffix(".jsonl")
        self.path = answers.with_name(f"{name}.errors.jsonl")
        self.path.unlink(missing_ok=True)

    def add(self, answer_id: str, reason: str, attempts: int) -> None:
        """Append one at once."""
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": answer_id, "error": reason, "attempts": attempts}, ensure_ascii=False) + "\n")


def _write_all(stream: FileIO, line: bytes) -> None:
    """A nearly full disk takes a part of a line before it refuses the rest."""
    rest = memoryview(line)
    while rest:
        rest = rest[stream.write(rest) :]


def _binary_reader(path: Path) -> gzip.GzipFile | BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


@contextmanager
def _binary_writer(path: Path, compressed: bool) -> Iterator[gzip.GzipFile | BinaryIO]:
    """A file to write to; compressed ones carry neither time nor name, so that equal answers make equal files."""
    with path.open("wb") as raw:
        if compressed:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                yield packed
        else:
            yield raw
