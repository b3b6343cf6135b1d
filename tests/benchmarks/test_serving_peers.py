"""Peers are compared on the same prompts, in turns, and none is believed without its tokens."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import peer_engines
from benchmarks.own_engine import Ours, own_words
from benchmarks.peer_engines import LlamaServer, Served, Worker, closed_loop
from benchmarks.serving_peers import compare, leading, mix, parts, ratios, row, same, table
from dspark.data.chat import Message
from dspark.engine.events import Event
from dspark.evaluation.prompts import Prompt, PromptSet


class Fake:
    """Takes `seconds` a prompt, writes `share` of the tokens, and notes who was asked what."""

    def __init__(self, name: str, seconds: float, asked: list[tuple[str, int]], share: float = 1.0) -> None:
        self.name, self.seconds, self.asked, self.share = name, seconds, asked, share

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int, natural: bool = False) -> Served:
        self.asked.append((self.name, prompts[0][0]))
        answers = ((0,) * max_tokens,) * (len(prompts) - 1) + ((0,) * int(self.share * max_tokens),)
        return Served(self.seconds * len(prompts), answers)

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *_: object) -> None: ...


REPEATS = [[[repeat], [repeat]] for repeat in range(20)]


def test_ratios_are_of_speeds_and_all_engines_answer_every_repeat_in_changing_order() -> None:
    asked: list[tuple[str, int]] = []
    peers = {"dspark": Fake("dspark", 1.0, asked), "vllm": Fake("vllm", 4.0, asked)}
    runs = compare(peers, REPEATS, max_tokens=8)
    assert {name: [served.speed for served in own] for name, own in runs.items()} == {
        "dspark": [8.0] * 20,
        "vllm": [2.0] * 20,
    }
    assert ratios(runs) == {"vllm": [4.0, 4.0, 4.0]}
    assert [number for _, number in asked[::2]] == [number for _, number in asked[1::2]] == list(range(20))
    assert {name for name, _ in asked[::2]} == {"dspark", "vllm"}


@pytest.mark.parametrize("natural", [False, True])
def test_an_engine_that_writes_less_is_not_believed_unless_answers_may_end(natural: bool) -> None:
    peers = {"vllm": Fake("vllm", 1.0, [], share=0.5)}
    if natural:
        assert compare(peers, REPEATS, 8, natural=True)["vllm"][0].tokens == 12
    else:
        with pytest.raises(RuntimeError, match=r"vllm wrote \[8, 4\] tokens, not 8 for each of 2"):
            compare(peers, REPEATS, 8)


def test_no_engine_writes_nothing_or_too_much_where_answers_may_end() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(RuntimeError, match="not 8 for each"):
            compare({"vllm": Fake("vllm", 1.0, [], share)}, REPEATS, 8, natural=True)


def test_same_counts_the_tokens_that_answers_begin_with() -> None:
    runs = {"dspark": [Served(1.0, ((1, 2, 3), (4, 5)))], "vllm": [Served(2.0, ((1, 2, 9), (4, 5, 6)))]}
    assert leading((1, 2), (3, 2)) == 0
    assert same(runs) == {"vllm": 2.0}


class Lengths:
    """A codec that makes of every chat its text's length, that many times."""

    def encode_chat(self, chat: Sequence[Message]) -> list[int]:
        return [len(chat[0].content)] * len(chat[0].content)


def test_sets_are_mixed_in_turn_each_in_an_order_of_the_seed() -> None:
    texts = {"a": range(1, 20, 2), "b": range(2, 21, 2)}
    sets = [PromptSet(name, tuple(Prompt(str(n), "chat", ("x" * n,)) for n in own)) for name, own in texts.items()]
    mixed = [[ids[0] for ids in mix(sets, Lengths(), 17, seed)] for seed in (0, 0, 1)]  # type: ignore[arg-type]
    assert mixed[0] == mixed[1] != mixed[2]
    assert sorted(mixed[0]) == list(range(1, 18))
    assert [length % 2 for length in mixed[0][:16]] == [1, 0] * 8
    assert mixed[0][:16:2] != list(range(1, 17, 2))


def test_repeats_and_the_warm_up_share_no_prompt() -> None:
    repeats, warm = parts([[i] for i in range(11)], requests=3, repeats=3, users=2)
    asked = [prompt[0] for prompts in (*repeats, warm) for prompt in prompts]
    assert [len(prompts) for prompts in repeats] == [3, 3, 3]
    assert (len(warm), sorted(asked)) == (2, list(range(11)))
    with pytest.raises(SystemExit, match="too few"):
        parts([[i] for i in range(10)], requests=3, repeats=3, users=2)


def test_the_table_has_a_line_for_every_engine_and_a_column_for_every_level() -> None:
    fast, slow = [Served(1.0, ((0,) * 8,)), Served(2.0, ((0,) * 8,))], [Served(4.0, ((0,) * 8,))] * 2
    rows = [row(1, {"dspark": fast, "vllm": slow}), row(8, {"dspark": slow})]
    assert table(rows).splitlines() == [
        "| engine | 1 | 8 |",
        "| --- | --- | --- |",
        "| dspark | 6.0 | 2.0 |",
        "| vllm | 2.0 (3.00x, 2.00 to 4.00) | - |",
    ]


class Core:
    """Gives every request a token a step, its number, until it has three; most at once are noted."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.added = self.most = 0

    def add(self, prompt: Sequence[int], params: object) -> int:
        self.left[self.added], self.added = 3, self.added + 1
        self.most = max(self.most, len(self.left))
        return self.added - 1

    def step(self) -> list[Event]:
        self.left = {number: count - 1 for number, count in self.left.items()}
        events = [Event(number, (number,), "", None if count else "length") for number, count in self.left.items()]
        self.left = {number: count for number, count in self.left.items() if count}
        return events


def test_this_engine_is_asked_as_many_at_a_time_as_there_are_users() -> None:
    core = Core()
    served = Ours(core, users=2).serve([[1], [2], [3]], 3)  # type: ignore[arg-type]
    assert (served.answers, core.most) == (((0,) * 3, (1,) * 3, (2,) * 3), 2)


def test_engines_are_named_by_what_tells_them_from_the_first() -> None:
    assert own_words("auto", "lagged", "lagged", "auto") == []
    assert own_words("plain", "fixed", "lagged", "auto") == ["fixed", "plain"]


def test_users_have_one_request_each() -> None:
    running, most, lock, all_there = 0, 0, threading.Lock(), threading.Barrier(3, timeout=30)

    def answer(prompt: Sequence[int]) -> Sequence[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_there.wait()  # only passes when three are there at once
        with lock:
            running -= 1
        return prompt

    served = closed_loop(answer, [[1], [1, 2], [3]] * 4, users=3)
    assert (served.answers, most) == (((1,), (1, 2), (3,)) * 4, 3)
    assert served.seconds > 0


ECHO = """
import json, sys, time
print(json.dumps({"opened": json.loads(sys.stdin.readline())}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if not job["prompts"]:
        sys.exit("no prompts: giving up")
    if job["max_tokens"] == 0:
        time.sleep(60)
    answers = [[job["users"]] * job["max_tokens"] for _ in job["prompts"]]
    print(json.dumps({"seconds": 2.0, "answers": answers}), flush=True)
"""


def test_a_worker_answers_lines_and_its_death_is_told() -> None:
    with Worker([sys.executable, "-c", ECHO], {"model": "m"}) as worker:
        assert worker.at(users=3).serve([[1], (2, 3)], 5) == Served(2.0, ((3,) * 5,) * 2)
        assert worker.at(users=1).serve([[1]], 5).speed == 2.5
        with pytest.raises(RuntimeError, match="died:\nno prompts: giving up"):
            worker.at(users=1).serve([], 5)


def test_a_worker_that_takes_too_long_is_ended_and_what_it_said_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    speaking = "import sys; print('opening', file=sys.stderr, flush=True)\n" + ECHO
    with Worker([sys.executable, "-c", speaking], {}, log) as worker:
        job = {"prompts": [[1]], "max_tokens": 0, "users": 1}
        with pytest.raises(RuntimeError, match="killed after 0 s without an answer:\nopening"):
            worker.ask(job, patience=0.2)
    assert log.read_text() == "opening\n"


VLLM = """
class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize, output_kind):
        assert (temperature, detokenize, output_kind) == (0.0, False, "final")
        self.count = max_tokens if ignore_eos else 1
class Out:
    finished = True
    def __init__(self, name, ids): self.request_id, self.token_ids, self.outputs = name, ids, [self]
class LLM:
    def __init__(self, model, dtype, max_model_len, max_num_seqs):
        print("what a library prints", model, max_num_seqs)
        self.llm_engine, self.seated = self, []
    def add_request(self, name, prompt, params):
        assert set(prompt) == {"prompt_token_ids"}
        self.seated.append(Out(name, (prompt["prompt_token_ids"] * 9)[:params.count]))
        assert len(self.seated) <= 2
    def step(self):
        return [self.seated.pop()]  # the last comes first
"""


def test_the_vllm_worker_speaks_the_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(VLLM)
    (tmp_path / "vllm" / "sampling_params.py").write_text("class RequestOutputKind: FINAL_ONLY = 'final'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with peer_engines.vllm(Path(sys.executable), tmp_path, users=3, max_len=64) as worker:
        assert worker.at(users=2).serve([[1], [2], [3]], 3).answers == ((1,) * 3, (2,) * 3, (3,) * 3)
        assert worker.at(users=2).serve([[1], [2]], 3, natural=True).answers == ((1,), (2,))


SERVER = f"""#!{sys.executable}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
port = int(sys.argv[sys.argv.index("--port") + 1])
assert sys.argv[sys.argv.index("-np") + 1] == "2" and sys.argv[sys.argv.index("-c") + 1] == "128"
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self): self.send_response(200); self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["ignore_eos"] and body["temperature"] == 0 and body["return_tokens"]
        read = len(body["prompt"]) + (body["prompt"] == [9])  # a token more for one of them
        data = json.dumps({{"tokens": body["prompt"] * body["n_predict"], "tokens_evaluated": read}}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers()
        self.wfile.write(data)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_llama_cpp_is_asked_over_its_own_interface(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text(SERVER)
    server.chmod(0o755)
    with LlamaServer(server, tmp_path / "model.gguf", users=2, max_len=64) as peer:
        assert peer.serve([[1], [2], [3]], 4).answers == ((1,) * 4, (2,) * 4, (3,) * 4)
        with pytest.raises(RuntimeError, match="read 2 tokens of a prompt of 1"):
            peer.serve([[9]], 4)


def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\nexit 3\n")
    server.chmod(0o755)
    with pytest.raises(RuntimeError, match="status 3"):
        LlamaServer(server, tmp_path / "model.gguf", users=1, max_len=64)
