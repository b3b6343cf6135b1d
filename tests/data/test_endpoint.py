"""An endpoint that is busy, slow, broken or dead: everything is answered, or said in one line."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import pytest

from dspark.data.answer_source import Backlog, Failure, Outcome, Question, Reply, SamplingSettings
from dspark.data.backoff import Backoff
from dspark.data.endpoint import Endpoint, EndpointAnswers
from dspark.data.openai_protocol import Api, OpenAIProtocol
from dspark.errors import CompatibilityError, ConfigError, DependencyError, EndpointError
from tests.data.small import conversations, transcriber

pytest.importorskip("httpx2", reason="needs the extra `data`")

WRITER = transcriber()
CHATS = conversations(12)
SETTINGS = SamplingSettings(temperature=0.7, top_p=0.8, top_k=20, max_tokens=9)

Behaviour = Callable[[BaseHTTPRequestHandler, dict, int], None]
"""What a server does with a request body on its n-th sight."""


def questions(count: int = 12) -> list[Question]:
    chats = [chat.messages([]) for chat in CHATS[:count]]
    return [Question(i, 0, messages, WRITER.render(messages), i) for i, messages in enumerate(chats)]


def send(handler: BaseHTTPRequestHandler, status: int, body: object, **headers: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def good(handler: BaseHTTPRequestHandler, body: dict, sight: int = 0) -> None:
    send(handler, 200, {"choices": [{"text": f"answer {body['seed']}", "finish_reason": "stop"}]})


class Server:
    """An HTTP server that behaves as told, and remembers requests."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.requests: list[tuple[str, dict, dict]] = []
        self.most_at_once = self._at_once = 0
        lock, seen = threading.Lock(), {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:  # noqa: N805
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                with lock:
                    sight = seen[body["seed"]] = seen.get(body["seed"], 0) + 1
                    self.requests.append((handler.path, dict(handler.headers), body))
                    self._at_once += 1
                    self.most_at_once = max(self.most_at_once, self._at_once)
                try:
                    behaviour(handler, body, sight)
                except (BrokenPipeError, ConnectionResetError):
                    handler.close_connection = True
                finally:
                    with lock:
                        self._at_once -= 1

            def log_message(handler, *args: object) -> None:  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Behaviour], Server]]:
    servers: list[Server] = []

    def start(behaviour: Behaviour = good) -> Server:
        servers.append(Server(behaviour))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


class Waits:
    """Stands in for sleeping; remembers how long."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def ask(url: str, count: int = 12, *, api: Api = "completions", token_ids: bool = True, **options) -> list[Outcome]:
    endpoint = Endpoint(url, **{"sleep": Waits(), "concurrency": 4, **options})
    protocol = OpenAIProtocol("m", WRITER, SETTINGS, api, token_ids)
    return list(EndpointAnswers(endpoint, protocol, Random(0)).answers(Backlog(questions(count))))


def texts(outcomes: list[Outcome]) -> dict[int, str]:
    return {o.question.index: o.result.text for o in outcomes if isinstance(o.result, Reply)}


ALL = {i: f"answer {i}" for i in range(12)}


def test_the_prompt_is_sent_as_tokens_of_our_template(serve) -> None:
    server = serve()
    assert texts(ask(f"{server.url}/v1/", api_key="secret")) == ALL
    path, headers, body = server.requests[0]
    asked = next(question for question in questions() if question.seed == body["seed"])
    assert (path, headers["Authorization"]) == ("/v1/completions", "Bearer secret")
    assert body == {
        "model": "m", "prompt": list(asked.prompt.token_ids), "max_tokens": 9, "temperature": 0.7, "top_p": 0.8,
        "seed": asked.seed, "top_k": 20, "return_token_ids": True,
    }  # fmt: skip


def test_a_chat_carries_messages_and_the_thinking_flag(serve) -> None:
    def chat(handler, body, sight):
        send(handler, 200, {"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]})

    server = serve(chat)
    (outcome,) = ask(server.url, 1, api="chat", token_ids=False)
    assert outcome.result == Reply("a", None, "length")
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert "Authorization" not in headers
    assert body["messages"] == [{"role": "user", "content": "Question 0.0"}]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "return_token_ids" not in body


def test_exact_ids_are_taken_where_they_are_told(serve) -> None:
    def exact(handler, body, sight):
        send(handler, 200, {"choices": [{"text": "a", "token_ids": [5, 6], "finish_reason": "stop"}]})

    assert ask(serve(exact).url, 1)[0].result == Reply("a", (5, 6), "stop")


def test_requests_run_side_by_side_and_no_more_than_asked(serve) -> None:
    barrier = threading.Barrier(3)

    def together(handler, body, sight):
        barrier.wait(10)
        good(handler, body)

    server = serve(together)
    assert texts(ask(server.url, concurrency=3)) == ALL
    assert server.most_at_once == 3


def cut(handler: BaseHTTPRequestHandler, body: dict, sight: int) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices"')
    handler.close_connection = True


TROUBLES: dict[str, Behaviour] = {
    "busy": lambda handler, body, sight: send(handler, 429, {"error": {"message": "slow down"}}),
    "failing": lambda handler, body, sight: send(handler, 500, b"oops"),
    "restarting": lambda handler, body, sight: send(handler, 503, {}),
    "cut": cut,
    "silent": lambda handler, body, sight: setattr(handler, "close_connection", True),
    "slow": lambda handler, body, sight: time.sleep(0.6),
    "babbling": lambda handler, body, sight: send(handler, 200, b"<html>"),
    "empty": lambda handler, body, sight: send(handler, 200, {"choices": []}),
    "aborting": lambda handler, body, sight: send(
        handler, 200, {"choices": [{"text": "half", "finish_reason": "abort"}]}
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_that_passes_costs_nothing_but_time(serve, trouble: str) -> None:
    def at_first(handler, body, sight):
        (TROUBLES[trouble] if sight < 3 and body["seed"] % 4 == 0 else good)(handler, body, sight)

    waits, timeout = Waits(), 0.3 if trouble == "slow" else 30.0
    assert texts(ask(serve(at_first).url, sleep=waits, timeout=timeout)) == ALL
    assert len(waits.seconds) == 6 or trouble == "slow"


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_that_stays_is_the_failure_of_one_prompt(serve, trouble: str) -> None:
    def always(handler, body, sight):
        (TROUBLES[trouble] if body["seed"] == 5 else good)(handler, body, sight)

    timeout = 0.4 if trouble == "slow" else 30.0
    outcomes = ask(serve(always).url, timeout=timeout, backoff=Backoff(attempts=2))
    assert texts(outcomes) == {i: text for i, text in ALL.items() if i != 5}
    (failure,) = [outcome.result for outcome in outcomes if isinstance(outcome.result, Failure)]
    assert failure.attempts == 2
    assert failure.reason
    assert "\n" not in failure.reason


def test_a_request_that_is_wrong_is_not_repeated(serve) -> None:
    def picky(handler, body, sight):
        if body["seed"] == 2:
            send(handler, 400, {"error": {"message": "prompt too long"}})
        else:
            good(handler, body)

    server = serve(picky)
    outcomes = ask(server.url)
    assert Failure("HTTP 400: prompt too long", 1) in [outcome.result for outcome in outcomes]
    assert len(server.requests) == 12


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_address_stops_at_once(serve, status: int) -> None:
    server = serve(lambda handler, body, sight: send(handler, status, {"error": {"message": "no such model"}}))
    with pytest.raises(EndpointError, match=f"refuses: HTTP {status}: no such model"):
        ask(server.url)
    assert len(server.requests) <= 4


def test_a_dead_endpoint_stops_after_the_back_off(serve) -> None:
    server = serve()
    server.stop()
    waits = Waits()
    with pytest.raises(EndpointError, match=r"127.0.0.1:\d+ cannot be reached .*tried 3 times"):
        ask(server.url, sleep=waits, backoff=Backoff(attempts=3))
    assert len(waits.seconds) >= 2


def test_answers_that_were_had_are_given_before_the_end(serve) -> None:
    def dying(handler, body, sight):
        (good if body["seed"] < 6 else TROUBLES["failing"])(handler, body, sight)

    endpoint = Endpoint(serve(dying).url, sleep=Waits(), concurrency=2, backoff=Backoff(attempts=1))
    source, found = EndpointAnswers(endpoint, OpenAIProtocol("m", WRITER, SETTINGS), Random(0)), []
    with pytest.raises(EndpointError, match="failed 8 prompts in a row, each 1 times: HTTP 500: oops"):
        found.extend(source.answers(Backlog(questions(12) + [q for q in questions(12) if q.seed > 5])))
    assert set(texts(found)) == set(range(6))


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_another_template_is_noticed_by_the_length_of_the_prompt(serve, api: Api) -> None:
    def other(handler, body, sight):
        choice = {"text": "a", "message": {"content": "a"}, "finish_reason": "stop"}
        send(handler, 200, {"choices": [choice], "usage": {"prompt_tokens": 7}})

    with pytest.raises(CompatibilityError, match="counts 7 prompt tokens where the target's chat template gives"):
        ask(serve(other).url, 3, api=api)


def test_thoughts_cut_off_an_answer_are_refused(serve) -> None:
    def parsed(handler, body, sight):
        message = {"content": "a", "reasoning_content": "hm"}
        send(handler, 200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    with pytest.raises(CompatibilityError, match="--api completions"):
        ask(serve(parsed).url, 1, api="chat")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://[::1", "http://host:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        ask(url, 1)


def test_without_the_client_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx2", None)
    with pytest.raises(DependencyError, match=r"dspark\[data\]"):
        ask("http://localhost", 1)


def test_leaving_early_leaves_nothing_in_flight(serve) -> None:
    def slow_but_first(handler, body, sight):
        if body["seed"]:
            time.sleep(0.3)
        good(handler, body)

    source = EndpointAnswers(
        Endpoint(serve(slow_but_first).url, concurrency=4), OpenAIProtocol("m", WRITER, SETTINGS), Random(0)
    )
    outcomes = source.answers(Backlog(questions()))
    assert next(outcomes).question.index == 0
    started = time.perf_counter()
    outcomes.close()
    assert time.perf_counter() - started < 0.25


def test_waits_double_up_to_the_longest_and_heed_the_server() -> None:
    backoff, random = Backoff(first=1.0, longest=8.0), Random(1)
    for attempt, longest in enumerate((1, 2, 4, 8, 8), 1):
        waits = [backoff.wait(attempt, None, random) for _ in range(50)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
    assert backoff.wait(1, 5.0, random) == 5.0
    assert backoff.wait(1, 9999.0, random) == 8.0


@pytest.mark.parametrize(("header", "expected"), [("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_a_server_may_ask_for_patience(serve, header: str, expected: float | None) -> None:
    def busy(handler, body, sight):
        if sight == 1:
            send(handler, 429, {}, Retry_After=header)
        else:
            good(handler, body)

    waits = Waits()
    ask(serve(busy).url, 1, sleep=waits)
    assert waits.seconds == [expected] if expected else waits.seconds[0] <= 1.0
