"""`dspark data regenerate`, with the built-in engine and against an endpoint."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dspark.data.answers import read_answers
from dspark.engine.side_by_side import SideBySide


@pytest.fixture
def prompts(tmp_path):
    rows = [{"id": f"p{i}", "domain": "math", "turns": [f"{i}?", "More."][: 1 + i % 2]} for i in range(4)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def arguments(world, prompts, tmp_path):
    return ("data", "regenerate", prompts, "-o", tmp_path / "a.jsonl", "-t", world / "target", "-n", 16)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def endpoint():
    """A server that answers every prompt with fifteen letters."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            choice = {"text": "abcdefghijklmno", "finish_reason": "stop"}
            data = json.dumps({"choices": [choice], "usage": {"prompt_tokens": len(body["prompt"])}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_the_built_in_engine_answers_and_train_reads_it(run, arguments, tmp_path):
    outcome = run(*arguments, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    report, rows = outcome.json, read(tmp_path / "a.jsonl")
    assert report["answers"] == report["new"] == len(rows)
    assert (report["failed"], report["finished"], report["errors"]) == (0, True, None)
    assert report["response_tokens"] == sum(len(row["response_ids"]) for row in rows)
    assert {row["template_hash"] for row in rows} != {""}
    assert {row["exact_tokens"] for row in rows} == {True}
    assert all(row["target_hash"] for row in rows)
    assert read_answers(tmp_path / "a.jsonl")


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(run, arguments, tmp_path, monkeypatch):
    whole = run(*arguments[:4], tmp_path / "whole.jsonl", *arguments[5:], "-c", 1)
    assert whole.status == 0
    real = SideBySide.answers

    def interrupted(self, backlog):
        yield next(real(self, backlog))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SideBySide, "answers", interrupted)
        outcome = run(*arguments, "--json")
    assert (outcome.status, outcome.json["finished"]) == (130, False)
    assert len(read(tmp_path / "a.jsonl")) == 1
    assert "cut at the limit" in run(*arguments).out
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_an_endpoint_answers(run, arguments, endpoint, tmp_path):
    pytest.importorskip("httpx2", reason="needs the extra `data`")
    outcome = run(*arguments, "--endpoint", endpoint, "--model", "served")
    assert outcome.status == 0
    assert outcome.out.startswith(f"{tmp_path / 'a.jsonl'}: 6 answers, 6 new (96 tokens)")
    rows = read(tmp_path / "a.jsonl")
    assert {row["model"] for row in rows} == {"served"}
    assert {row["exact_tokens"] for row in rows} == {False}
    assert [row["id"] for row in rows] == ["p0", "p1/1", "p1/2", "p2", "p3/1", "p3/2"]
    assert {len(row["response_ids"]) for row in rows} == {16}
    assert len(read_answers(tmp_path / "a.jsonl")) == 6


def test_a_dead_endpoint_is_one_line_and_a_failure(run, arguments):
    pytest.importorskip("httpx2", reason="needs the extra `data`")
    outcome = run(*arguments, "--endpoint", "http://127.0.0.1:9", "--attempts", 1)
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err.count("\n") == 1
    assert "cannot be reached" in outcome.err
    assert "0 answers are kept" in outcome.err


def test_what_failed_is_told(run, arguments, tmp_path):
    rows = [{"id": "long", "prompt": "x" * 400}, {"id": "short", "prompt": "x"}]
    arguments[2].write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = run(*arguments)
    assert outcome.status == 1
    assert "1 failed, see" in outcome.out
    assert [row["id"] for row in read(tmp_path / "a.errors.jsonl")] == ["long"]


def test_answers_of_other_settings_are_refused(run, arguments):
    assert run(*arguments).status == 0
    run(*arguments, "-T", 1).refused("a.jsonl", "temperature")
    run(*arguments, "--thinking").refused("a.jsonl", "thinking")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--top-p", 2), ["top_p"]),
        (("--endpoint", "localhost:1"), ["no address"]),
        (("-o", "answers.txt"), ["answers.txt", ".jsonl"]),
        (("--limit", 0), ["--limit"]),
    ],
)
def test_bad_options_are_refused(run, arguments, more, words):
    run(*arguments, *more).refused(*words)


@pytest.mark.parametrize(
    ("text", "words"), [("", ["no prompts"]), ("{}\n", ["turns", "line 1"]), ("not json\n", ["line 1"])]
)
def test_bad_prompts_are_refused(run, arguments, text, words):
    arguments[2].write_text(text)
    run(*arguments).refused("prompts.jsonl", *words)


def test_the_bare_verb_shows_what_there_is(run):
    outcome = run("data")
    assert outcome.status == 2
    assert "regenerate" in outcome.out + outcome.err
