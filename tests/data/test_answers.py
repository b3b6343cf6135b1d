"""Answers are read exactly, and bad files are named."""

import gzip
import json
from pathlib import Path

import pytest

from dspark.data.answers import Answer, read_answers, split_answers
from dspark.errors import CompatibilityError, ConfigError, FormatError

ROW = {"id": "x", "domain": "math", "prompt_ids": [1, 2], "response_ids": list(range(20)), "temperature": 0.5}


def write(path: Path, *rows: object) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.gz"])
def test_reads_plain_and_compressed(tmp_path: Path, name: str) -> None:
    (answer,) = read_answers(write(tmp_path / name, ROW))
    assert answer.token_ids == (1, 2, *range(20))


def test_cuts_long_answers_and_drops_short_and_hot_ones(tmp_path: Path) -> None:
    rows = (ROW, ROW | {"response_ids": [1] * 13}, ROW | {"temperature": 1.0})
    answers = read_answers(write(tmp_path / "a.jsonl", *rows), max_temperature=0.6, max_length=18)
    assert [len(answer.response_ids) for answer in answers] == [16]


@pytest.mark.parametrize(
    ("row", "message"), [({"id": "x"}, "line 1: bad or missing field 'prompt_ids'"), ([1], "line 1 holds a list")]
)
def test_bad_rows_are_named(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_answers(write(tmp_path / "a.jsonl", row))


def test_answers_of_another_template_are_refused_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROW, ROW | {"template_hash": "aa"}, ROW | {"template_hash": "bb"})
    assert len(read_answers(path)) == 3
    with pytest.raises(CompatibilityError, match="line 3 was rendered with chat template bb, the target's is aa"):
        read_answers(path, template_hash="aa")


@pytest.mark.parametrize(("field", "token"), [("prompt_ids", 20), ("response_ids", 99), ("response_ids", -1)])
def test_tokens_that_the_target_does_not_know_are_refused_by_line(tmp_path: Path, field: str, token: int) -> None:
    path = write(tmp_path / "a.jsonl", ROW, ROW | {field: [*ROW[field], token]})
    assert len(read_answers(path)) == 2
    with pytest.raises(CompatibilityError, match=rf"line 2 has token {token}, the target's vocabulary is \[0, 20\)"):
        read_answers(path, vocab_size=20)


def test_empty_lines_count_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n\n\n{json.dumps(ROW | {'response_ids': None})}\n")
    with pytest.raises(FormatError, match="line 4: bad or missing field"):
        read_answers(path)
    path.write_text(f"\n{json.dumps(ROW)}\n\n{json.dumps(ROW | {'template_hash': 'bb'})}\n")
    with pytest.raises(CompatibilityError, match="line 4 was rendered"):
        read_answers(path, template_hash="aa")


def test_broken_json_and_missing_and_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(FormatError, match="does not exist"):
        read_answers(path)
    path.write_text("{\n")
    with pytest.raises(FormatError, match="line 1 is not JSON"):
        read_answers(path)
    path.write_text("\n")
    with pytest.raises(FormatError, match="no usable answer"):
        read_answers(path)


def test_truncated_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", *[ROW] * 50)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FormatError, match="cannot be read"):
        read_answers(path)


def test_the_first_answers_stay_held_out_when_more_are_added() -> None:
    answers = [Answer(str(i), "math", (1,), (2,), 0.0) for i in range(6)]
    few, many = split_answers(answers[:4], 2), split_answers(answers, 2)
    assert few.held_out == many.held_out == tuple(answers[:2])
    assert many.train == tuple(answers[2:])


@pytest.mark.parametrize("held_out", [4, 5])
def test_something_must_be_left_to_train_on(held_out: int) -> None:
    with pytest.raises(ConfigError, match="of 4; lower data.held_out"):
        split_answers([Answer(str(i), "math", (1,), (2,), 0.0) for i in range(4)], held_out)
