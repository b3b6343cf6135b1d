"""What reaches stdout, and in what form."""

import json
from dataclasses import dataclass
from pathlib import Path

from dspark.cli import console


@dataclass(frozen=True)
class Measured:
    name: str
    values: tuple[float, ...]
    where: Path


def test_json_is_one_strict_line_whatever_the_value_holds(capsys):
    value = {"run": Measured("zürich", (1.5, float("nan"), float("inf")), Path("a/b")), 3: [None, True]}
    console.print_json(value)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    expected = {"run": {"name": "zürich", "values": [1.5, None, None], "where": "a/b"}, "3": [None, True]}
    assert json.loads(out, parse_constant=lambda name: pytest_fail(name)) == expected


def test_notes_go_to_stderr_and_can_be_silenced(capsys):
    console.note("12 tokens/s")
    console.note("hidden", quiet=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "12 tokens/s" in captured.err
    assert "hidden" not in captured.err


def test_progress_and_status_print_nothing_without_a_terminal(capsys):
    with console.status("loading"), console.progress("decoding", total=3) as bar:
        bar.show(1, "first")
        bar.advance("second")
    assert capsys.readouterr() == ("", "")


def pytest_fail(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
