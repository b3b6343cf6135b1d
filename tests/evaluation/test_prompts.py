"""Prompt sets are read in order and bad rows are named."""

from pathlib import Path

import pytest

from dspark.errors import FormatError
from dspark.evaluation.prompts import Prompt, read_prompt_set, read_prompt_sets


def test_reads_the_first_prompts_of_a_named_set(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text('{"id": "a", "domain": "math", "turns": ["x", "y"]}\n{"prompt": "z"}\n{"turns": ["w"]}\n')
    prompts = read_prompt_set(path, limit=2)
    assert prompts.name == "gsm8k"
    assert prompts.prompts == (Prompt("a", "math", ("x", "y")), Prompt("gsm8k-2", "", ("z",)))


def test_a_directory_gives_its_files_in_name_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text('{"turns": ["x"]}\n')
    assert [s.name for s in read_prompt_sets([tmp_path])] == ["a", "b"]


@pytest.mark.parametrize("row", ['{"turns": []}', '{"turns": "x"}', '{"turns": [1]}', "{}"])
def test_bad_turns_are_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(FormatError, match="line 1: expected `turns`"):
        read_prompt_set(path)


def test_empty_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("")
    with pytest.raises(FormatError, match="holds no prompts"):
        read_prompt_set(tmp_path / "p.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"no .jsonl file"):
        read_prompt_sets([tmp_path / "empty"])


def test_the_nine_sets(shared_dir: Path) -> None:
    sets = read_prompt_sets([shared_dir / "data" / "eval"], limit=24)
    assert len(sets) == 9
    assert all(len(s.prompts) == 24 for s in sets)


def test_repeated_ids_and_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "turns": ["x"]}\n{"id": "a", "turns": ["y"]}\n')
    with pytest.raises(FormatError, match="'a' occurs more than once"):
        read_prompt_set(path)
    path.write_text('{"turns": ["x"]}\n')
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "p.jsonl").write_text('{"turns": ["x"]}\n')
    with pytest.raises(FormatError, match="'p' occurs more than once"):
        read_prompt_sets([path, tmp_path / "q"])
