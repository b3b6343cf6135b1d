"""Peers are compared on the same prompts, in turns, and none is believed without its tokens."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import peer_engines
from benchmarks.peer_engines import LlamaServer, Served, Worker, closed_loop
from benchmarks.serving_peers import compare, ratios


class Fake:
    """Takes `seconds` a prompt, writes `share` of the tokens, and notes who was asked what."""

    def __init__(self, name: str, seconds: float, asked: list[tuple[str, int]], share: float = 1.0) -> None:
        self.name, self.seconds, self.asked, self.share = name, seconds, asked, share

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Served:
        self.asked.append((self.name, prompts[0][0]))
        return Served(self.seconds * len(prompts), int(self.share * len(prompts) * max_tokens))

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *_: object) -> None: ...


REPEATS = [[[repeat], [repeat]] for repeat in range(20)]


def test_ratios_are_of_speeds_and_all_engines_answer_every_repeat_in_changing_order() -> None:
    asked: list[tuple[str, int]] = []
    peers = {"dspark": Fake("dspark", 1.0, asked), "vllm": Fake("vllm", 4.0, asked)}
    speeds = compare(peers, REPEATS, max_tokens=8)
    assert speeds == {"dspark": [8.0] * 20, "vllm": [2.0] * 20}
    assert ratios(speeds) == {"vllm": [4.0, 4.0, 4.0]}
    assert [number for _, number in asked[::2]] == [number for _, number in asked[1::2]] == list(range(20))
    assert {name for name, _ in asked[::2]} == {"dspark", "vllm"}


def test_an_engine_that_writes_less_is_not_believed() -> None:
    with pytest.raises(RuntimeError, match="vllm wrote 8 tokens, not 8 for 2 prompts"):
        compare({"vllm": Fake("vllm", 1.0, [], share=0.5)}, REPEATS, max_tokens=8)


def test_users_have_one_request_each() -> None:
    running, most, lock, all_there = 0, 0, threading.Lock(), threading.Barrier(3, timeout=30)

    def answer(prompt: Sequence[int]) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_there.wait()  # only passes when three are there at once
        with lock:
            running -= 1
        return len(prompt)

    served = closed_loop(answer, [[1], [1, 2], [3]] * 4, users=3)
    assert (served.tokens, most) == (16, 3)
    assert served.seconds > 0


ECHO = """
import json, sys
print(json.dumps({"opened": json.loads(sys.stdin.readline())}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if not job["prompts"]:
        sys.exit("no prompts: giving up")
    print(json.dumps({"seconds": 2.0, "tokens": len(job["prompts"]) * job["max_tokens"]}), flush=True)
"""


def test_a_worker_answers_lines_and_its_death_is_told() -> None:
    with Worker([sys.executable, "-c", ECHO], {"model": "m"}) as worker:
        assert worker.serve([[1], (2, 3)], 5) == Served(2.0, 10)
        assert worker.serve([[1]], 5).speed == 2.5
        with pytest.raises(RuntimeError, match="no prompts: giving up"):
            worker.serve([], 5)


VLLM = """
class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize):
        assert (temperature, ignore_eos) == (0.0, True)
        self.max_tokens = max_tokens
class Out:
    def __init__(self, count): self.token_ids = [0] * count; self.outputs = [self]
class LLM:
    def __init__(self, model, dtype, max_model_len, max_num_seqs, skip_tokenizer_init):
        print("what a library prints", model, max_num_seqs)
    def generate(self, prompts, params, use_tqdm):
        assert all(set(prompt) == {"prompt_token_ids"} for prompt in prompts)
        return [Out(params.max_tokens) for _ in prompts]
"""


def test_the_vllm_worker_speaks_the_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm.py").write_text(VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with peer_engines.vllm(Path(sys.executable), tmp_path, users=3, max_len=64) as worker:
        assert worker.serve([[1, 2], [3]], 7).tokens == 14


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
        assert body["ignore_eos"] and body["temperature"] == 0 and not body["cache_prompt"]
        data = json.dumps({{"tokens_predicted": body["n_predict"]}}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers()
        self.wfile.write(data)
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_llama_cpp_is_asked_over_its_own_interface(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text(SERVER)
    server.chmod(0o755)
    with LlamaServer(server, tmp_path / "model.gguf", users=2, max_len=64) as peer:
        assert peer.serve([[1], [2], [3]], 4).tokens == 12


def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\nexit 3\n")
    server.chmod(0o755)
    with pytest.raises(RuntimeError, match="status 3"):
        LlamaServer(server, tmp_path / "model.gguf", users=1, max_len=64)
