"""Prompts come from JSONL, parquet, folders and the hub; what is wrong with them is named."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dspark.data.prompt_sources import read_conversations
from dspark.errors import DependencyError, FormatError

ROWS = [{"id": f"r{i}", "domain": "math", "turns": [f"{i}?"]} for i in range(4)]


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def ids(*sources: object, **options: object) -> list[str]:
    return [one.id for one in read_conversations([str(source) for source in sources], **options)]


@pytest.fixture
def hub(monkeypatch):
    """Stands in for `datasets`; remembers what was asked."""
    asked = []

    def load_dataset(name, **options):
        asked.append((name, options))
        if name == "org/none":
            raise ConnectionError("no such data set\nand more")
        return iter(ROWS)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_files_folders_and_limits(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(ROWS[:2]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(ROWS[2:]).encode()))
    (tmp_path / "readme.txt").write_text("no prompts")
    assert ids(tmp_path) == ids(tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz") == ["r0", "r1", "r2", "r3"]
    assert ids(tmp_path, limit=1) == ["r0", "r2"]


def test_rows_without_ids_are_called_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines([{"prompt": "x"}, {"prompt": "y"}]).encode()))
    assert ids(tmp_path / "a.jsonl.gz") == ["a-1", "a-2"]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `data`")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "p.parquet")
    assert ids(tmp_path / "p.parquet") == ["r0", "r1", "r2", "r3"]
    (tmp_path / "q.parquet").write_bytes(b"nothing")
    with pytest.raises(FormatError, match="q.parquet cannot be read as parquet"):
        ids(tmp_path / "q.parquet")
    with pytest.raises(FormatError, match="does not exist"):
        ids(tmp_path / "none.parquet")
    parquet.write_table(pyarrow.table({"id": ["a", "b"], "text": ["x", "y"]}), tmp_path / "r.parquet")
    with pytest.raises(FormatError, match="r.parquet, row 1: expected `turns`"):
        ids(tmp_path / "r.parquet")


def test_hub_data_sets_are_streamed(hub: list) -> None:
    assert ids("org/prompts", split="test", limit=3) == ["r0", "r1", "r2"]
    assert hub == [("org/prompts", {"split": "test", "streaming": True})]
    with pytest.raises(FormatError, match="split 'train' cannot be had: no such data set$"):
        ids("org/none")


@pytest.mark.parametrize(("package", "source"), [("datasets", "org/prompts"), ("pyarrow", "p.parquet")])
def test_missing_packages_name_the_extra(monkeypatch, tmp_path: Path, package: str, source: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    Path("p.parquet").touch()
    with pytest.raises(DependencyError, match=r"dspark\[data\]"):
        ids(source)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prompts"),
        ("\n", "holds no prompts"),
        ('{"prompt": "a"}\nnot json\n', "line 2 is not JSON"),
        ('{"prompt": "a"}\n{}\n', "line 2: expected `turns`"),
        ('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n', "'1' occurs more than once"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(FormatError, match=words) as error:
        ids(tmp_path / "bad.jsonl")
    assert "bad.jsonl" in str(error.value)


def test_missing_files_and_empty_folders(tmp_path: Path) -> None:
    for source in (tmp_path / "none.jsonl", tmp_path / "none", tmp_path):
        with pytest.raises(FormatError, match=str(tmp_path)):
            ids(source)


def test_a_system_message_of_the_run_yields_to_the_rows_own(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([{"prompt": "x"}, {"prompt": "y", "system": "own"}]))
    read = read_conversations([str(tmp_path / "a.jsonl")], system="S")
    assert [one.system for one in read] == ["S", "own"]
