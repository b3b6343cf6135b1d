"""`dspark chat` on a pipe and, with a scripted user, on a terminal."""

import builtins
import io
import sys

import pytest

from dspark.cli import chat
from dspark.cli.conversation import Conversation
from dspark.cli.prompt_text import tolerant_lines
from dspark.engine.result import Commit
from dspark.types import SamplingParams


class Terminal(io.StringIO):
    """A stdin that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class FakeSession:
    """Answers every chat with two pieces; Ctrl-C strikes after the first when `interrupted`."""

    interrupted = False

    def __init__(self) -> None:
        self.codec = self
        self.seeds: list[int] = []

    def encode_chat(self, messages):
        return [len(messages)]

    def start(self, prompt_ids, params):
        self.seeds.append(params.seed)
        return FakeAnswer(self.interrupted)


class FakeAnswer:
    def __init__(self, interrupted: bool) -> None:
        self.interrupted = interrupted

    def __iter__(self):
        yield Commit((1,), "one ")
        if self.interrupted:
            raise KeyboardInterrupt
        yield Commit((2,), "two")

    def finish(self):
        return "result"


@pytest.fixture
def on_pipe(monkeypatch):
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.fixture
def on_terminal(monkeypatch):
    def script(*lines: str | type[BaseException]) -> None:
        queue = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(queue, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(builtins, "input", read)

    return script


def test_a_pipe_asks_line_by_line_and_json_holds_the_whole_conversation(run, world, on_pipe):
    on_pipe("Hello\n\nAgain\n/exit\nnever asked\n")
    outcome = run("chat", "-t", world / "target", "-d", world / "drafter", "-n", 6, "--system", "Be short.", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    messages = outcome.json["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["Hello", "Again"]
    assert [m["content"] for m in messages if m["role"] == "assistant"] == [t["text"] for t in outcome.json["turns"]]
    assert all(turn["metrics"]["tau"] >= 1 for turn in outcome.json["turns"] if len(turn["token_ids"]) > 1)


def test_answers_go_to_stdout_and_figures_to_stderr(run, world, on_pipe):
    arguments = ("chat", "-t", world / "target", "-n", 6)
    on_pipe("Hello\n")
    outcome = run(*arguments)
    on_pipe("Hello\n")
    assert outcome.out == run(*arguments, "--json").json["messages"][-1]["content"] + "\n"
    assert "tokens/s" in outcome.err


def test_reset_forgets(run, world, on_pipe):
    on_pipe("Hello\n/reset\nHello\n")
    turns = run("chat", "-t", world / "target", "-n", 6, "--json").json["turns"]
    assert turns[0]["token_ids"] == turns[1]["token_ids"]


def test_a_conversation_longer_than_the_context_is_refused_on_a_pipe(run, world, on_pipe):
    on_pipe("long " * 100 + "\n")
    run("chat", "-t", world / "target").refused("128")


@pytest.mark.parametrize(("question", "reason"), [("long " * 100, "128"), ("caf\udce9", "UTF-8")])
def test_a_question_that_fails_loses_no_earlier_turn(run, world, on_pipe, question, reason):
    on_pipe(f"Hello\n{question}\nnever asked\n")
    outcome = run("chat", "-t", world / "target", "-n", 6, "--json")
    answered, failed = outcome.json["turns"]
    assert outcome.status == 2
    assert answered["text"] == outcome.json["messages"][-1]["content"]
    assert reason in failed["error"]
    assert outcome.err == f"error: {failed['error']}\n"


def test_bytes_that_are_no_text_spoil_their_own_line_only():
    lines = tolerant_lines(io.TextIOWrapper(io.BytesIO(b"Hello\ncaf\xe9\n"), encoding="utf-8"))
    assert list(lines) == ["Hello\n", "caf\udce9\n"]


def test_on_a_terminal_an_impossible_question_is_reported_and_forgotten(run, world, on_terminal):
    on_terminal("long " * 100, "Hello", "/exit")
    outcome = run("chat", "-t", world / "target", "-n", 6)
    assert outcome.status == 0
    assert "error: the prompt has" in outcome.err
    assert "tokens/s" in outcome.err


def test_ctrl_c_at_the_prompt_and_the_end_of_input_are_no_failure(run, world, on_terminal):
    on_terminal(KeyboardInterrupt, "Hello")
    outcome = run("chat", "-t", world / "target", "-n", 6)
    assert outcome.status == 0
    assert chat.BANNER in outcome.err


def test_ctrl_c_keeps_what_was_said_and_the_conversation_goes_on(capsys):
    session = FakeSession()
    conversation = Conversation(session, SamplingParams(), system=None)
    session.interrupted = True
    assert conversation.ask("first") is None
    session.interrupted = False
    assert conversation.ask("second") == "result"
    assert [message.content for message in conversation.messages] == ["first", "one ", "second", "one two"]
    assert "[stopped]" in capsys.readouterr().err


def test_every_answer_has_random_numbers_of_its_own():
    session = FakeSession()
    conversation = Conversation(session, SamplingParams(seed=7), system=None, quiet=True)
    session.interrupted = True
    conversation.ask("first")
    session.interrupted = False
    conversation.ask("second")
    conversation.ask("third")
    assert len(set(session.seeds)) == 3


@pytest.mark.parametrize(
    ("arguments", "words"), [(["-T", "-1"], ["temperature"]), (["-n", "0"], ["max_tokens"]), (["-t", "no"], ["'no'"])]
)
def test_bad_options_are_one_line_and_status_2(run, on_pipe, arguments, words):
    on_pipe("Hello\n")
    run("chat", *arguments).refused(*words)
