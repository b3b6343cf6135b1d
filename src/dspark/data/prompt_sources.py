"""Where conversations come from: JSONL and parquet files, folders of them, and data sets of the Hugging Face hub."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dspark.data.answers import numbered_jsonl
from dspark.data.conversation import Conversation, parse_conversation
from dspark.errors import DependencyError, FormatError

_JSONL = (".jsonl", ".jsonl.gz")
_PARQUET = ".parquet"


def read_conversations(
    sources: Sequence[str], *, split: str = "train", limit: int | None = None, system: str | None = None
) -> list[Conversation]:
    """The conversations of `sources` in order, the first `limit` of each (all if None).

    A source is a .jsonl, .jsonl.gz or .parquet file, a folder of such files, or org/name of a hub data set, of which
    `split` is read. `system` opens every conversation that brings no system message of its own.

    Raises:
        FormatError: a source does not exist, is empty or malformed (the line is named), or an id occurs twice.
        DependencyError: parquet and the hub need packages of the extra `data`.
    """
    found = [one for source in sources for one in _read(source, split, limit)]
    repeated = next((name for name, count in Counter(one.id for one in found).items() if count > 1), None)
    if repeated is not None:
        raise FormatError(f"Prompt id {repeated!r} occurs more than once in {', '.join(sources)}; make ids unique.")
    if system is None:
        return found
    return [Conversation(c.id, c.domain, c.turns, system) if c.system is None else c for c in found]


def _read(source: str, split: str, limit: int | None) -> list[Conversation]:
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith((*_JSONL, _PARQUET)))
        if not files:
            raise FormatError(f"{path} holds no .jsonl, .jsonl.gz or .parquet file. Expected prompts.")
        return [one for file in files for one in _read(str(file), split, limit)]
    rows, unit = _rows(path, source, split), "row" if source.endswith(_PARQUET) or not path.exists() else "line"
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(_PARQUET)
    found = [
        parse_conversation(row, f"{source}, {unit} {number}", f"{stem}-{number}") for number, row in islice(rows, limit)
    ]
    if not found:
        raise FormatError(f"{source} holds no prompts. Expected rows with id, domain and turns, prompt or messages.")
    return found


def _rows(path: Path, source: str, split: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Rows with their numbers."""
    if path.name.endswith(_PARQUET):
        return enumerate(_parquet_rows(path), 1)
    if path.exists() or path.name.endswith(_JSONL) or source.count("/") != 1:
        return numbered_jsonl(path)
    return enumerate(_hub_rows(source, split), 1)


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.is_file():
        raise FormatError(f"{path} does not exist. Expected a parquet file.")
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DependencyError(f"{path} is parquet, which needs pyarrow: pip install 'dspark[data]'") from error
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise FormatError(f"{path} cannot be read as parquet: {error}. Download it again.") from error


def _hub_rows(name: str, split: str) -> Iterator[Mapping[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DependencyError(
            f"{name!r} is no local path; reading it from the hub needs datasets: pip install 'dspark[data]'"
        ) from error
    try:
        yield from load_dataset(name, split=split, streaming=True)
    except Exception as error:  # network, authorisation and naming problems have no common class
        first_line = str(error).strip().partition("\n")[0]
        raise FormatError(f"{name!r} is no local path, and its split {split!r} cannot be had: {first_line}") from error
