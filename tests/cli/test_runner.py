"""Exit statuses and one-line errors, on an app whose verbs raise what they are told to."""

import pytest
import typer
from safetensors import SafetensorError

from dspark.cli.runner import exit_status
from dspark.errors import CapacityError, ConfigError, SamplingError
from dspark.training.step import DivergenceError

ERRORS = {
    "config": ConfigError("found temperature -1;\nexpected 0 or more"),
    "capacity": CapacityError("the prompt is too long"),
    "missing": FileNotFoundError(2, "No such file or directory", "nowhere.txt"),
    "name": OSError(36, "File name too long", "xxx"),
    "disk": OSError(28, "No space left on device", "answers.json"),
    "nameless disk": OSError(28, "No space left on device"),
    "disk in words": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    "nan": SamplingError("the logits hold NaN"),
    "divergence": DivergenceError("the loss is nan"),
    "bug": RuntimeError("shapes differ"),
    "memory": MemoryError(),
    "interrupt": KeyboardInterrupt(),
}


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail(name: str) -> None:
        raise ERRORS[name]

    @app.command()
    def work(number: int = 0) -> None:
        typer.echo(number)

    return app


@pytest.mark.parametrize(
    ("name", "status", "line"),
    [
        ("config", 2, "error: found temperature -1; expected 0 or more"),
        ("capacity", 2, "error: the prompt is too long"),
        ("missing", 2, "error: nowhere.txt: No such file or directory"),
        ("name", 2, "error: xxx: File name too long"),
        ("disk", 1, "error: answers.json: No space left on device; make room, and run the same command again"),
        ("nameless disk", 1, "error: No space left on device; make room, and run the same command again"),
        ("disk in words", 1, "error: No space left on device; make room, and run the same command again"),
        ("nan", 1, "error: the logits hold NaN"),
        ("divergence", 1, "error: the loss is nan"),
        ("memory", 1, "error: out of memory; use a shorter context, a smaller batch or a smaller model"),
        ("interrupt", 130, "error: interrupted"),
    ],
)
def test_each_error_has_its_status_and_one_line(app, capsys, name, status, line):
    assert exit_status(app, ["fail", name]) == status
    captured = capsys.readouterr()
    assert captured.err == line + "\n"
    assert captured.out == ""


def test_unexpected_errors_say_how_to_see_the_traceback(app, capsys):
    assert exit_status(app, ["fail", "bug"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "RuntimeError: shapes differ" in error
    assert "DSPARK_DEBUG=1" in error
    assert "Traceback" not in error


def test_debug_variable_shows_the_traceback_and_keeps_the_status(app, capsys, monkeypatch):
    monkeypatch.setenv("DSPARK_DEBUG", "1")
    assert exit_status(app, ["fail", "config"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.endswith("error: found temperature -1; expected 0 or more\n")


@pytest.mark.parametrize("arguments", [["work", "--nmber", "1"], ["work", "--number", "one"], ["wrok"], ["fail"]])
def test_usage_errors_are_one_line_with_status_2(app, capsys, arguments):
    assert exit_status(app, arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err
    assert captured.out == ""


def test_success_is_status_0(app, capsys):
    assert exit_status(app, ["work", "--number", "7"]) == 0
    assert capsys.readouterr() == ("7\n", "")
