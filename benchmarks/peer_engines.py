"""Other engines behind one interface: the same prompts as token ids, as many new tokens, so many users at a time."""

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import torch

WORKER = Path(__file__).with_name("vllm_worker.py")
START_SECONDS = 1800.0
"""What a peer may take to be ready, or to answer; a compiler may run before the first answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """All prompts of one run answered, each by its token ids; seconds from the first prompt to the last token."""

    seconds: float
    answers: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self.answers))

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


class Peer(Protocol):
    """An engine that is ready for `users` at a time; a context manager that ends it."""

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int, natural: bool = False) -> Served:
        """Answer `prompts` greedily with exactly `max_tokens` each; with `natural` ends, fewer where the model ends."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Worker:
    """A process that answers JSON lines, told how to open its model by the first; what else it says goes to `log`.

    RuntimeError, with the end of what it said, if it dies or takes too long for an answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        opening: Mapping[str, Any],
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+") if log is None else log.open("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        try:
            self.ask(opening)
        except RuntimeError:
            self.__exit__()
            raise

    def ask(self, job: Mapping[str, Any], patience: float = START_SECONDS) -> dict[str, Any]:
        """The answer to one line, within `patience` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(patience, lambda: (late.set(), self._process.kill()))
        timer.start()
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self._log.seek(0)
            why = f"was killed after {patience:.0f} s without an answer" if late.is_set() else "died"
            raise RuntimeError(f"the peer {why}:\n{self._log.read()[-2000:]}")
        return dict(json.loads(line))

    def at(self, users: int) -> "At":
        """The same process with so many requests at a time."""
        return At(self, users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError), self._process:  # closes its pipes and waits: without input, it ends
            pass
        self._log.close()


@dataclass(frozen=True, slots=True)
class At:
    """A worker at one number of users. It goes on afterwards: who opened it ends it."""

    worker: Worker
    users: int

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int, natural: bool = False) -> Served:
        """As `Peer`."""
        job = {"prompts": [list(prompt) for prompt in prompts], "max_tokens": max_tokens}
        answer = self.worker.ask({**job, "users": self.users, "natural": natural})
        return Served(answer["seconds"], tuple(map(tuple, answer["answers"])))

    def __enter__(self) -> Self:
        """Without prefixes of earlier levels, which no other engine has: they are opened anew."""
        self.worker.ask({"forget": True})
        return self

    def __exit__(self, *_: object) -> None:
        """It goes on."""


def vllm(python: Path, model: Path, users: int, max_len: int, log: Path | None = None) -> Worker:
    """vLLM under the interpreter `python`, on a Hugging Face directory, for `users` at a time at most.

    It has as many threads as torch has here, on the first processors that this process may use.
    """
    threads = torch.get_num_threads()
    opening = {"model": str(model), "users": users, "max_len": max_len}
    processors = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
    environment = {"OMP_NUM_THREADS": str(threads), "WORKER_PROCESSORS": processors}
    return Worker([str(python), str(WORKER)], opening, log, environment=environment)


class LlamaServer:
    """llama.cpp's `llama-server` on a GGUF file, with `users` slots, and as many client threads."""

    def __init__(self, server: Path, model: Path, users: int, max_len: int) -> None:
        self._users, port = users, _free_port()
        self._url = f"http://127.0.0.1:{port}"
        sizes = ["-t", torch.get_num_threads(), "-c", users * max_len, "-np", users, "--port", port]
        self._process = subprocess.Popen(
            [str(server), "-m", str(model), *map(str, sizes)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait(self._ready)
        except RuntimeError:
            self.__exit__()
            raise

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int, natural: bool = False) -> Served:
        """As `Peer`."""
        return closed_loop(lambda prompt: self._answer(prompt, max_tokens, natural), prompts, self._users)

    def _answer(self, prompt: Sequence[int], max_tokens: int, natural: bool) -> list[int]:
        limits = {"n_predict": max_tokens, "ignore_eos": not natural}
        body = {"prompt": list(prompt), "temperature": 0.0, "return_tokens": True, **limits}
        request = urllib.request.Request(f"{self._url}/completion", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
            answer = json.load(response)
        if answer["tokens_evaluated"] != len(prompt):
            raise RuntimeError(f"llama-server read {answer['tokens_evaluated']} tokens of a prompt of {len(prompt)}")
        return list(answer["tokens"])

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {self._process.returncode}")
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


class Transformers:
    """`generate` of transformers in bf16: one prompt after another, whatever the number of users."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int, natural: bool = False) -> Served:
        """As `Peer`."""
        return closed_loop(lambda prompt: self._answer(prompt, max_tokens, natural), prompts, 1)

    def _answer(self, prompt: Sequence[int], max_tokens: int, natural: bool) -> list[int]:
        ids = torch.tensor([list(prompt)])
        limits = {"max_new_tokens": max_tokens, "min_new_tokens": 1 if natural else max_tokens}
        output = self._model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **limits)
        return list(output[0, len(prompt) :].tolist())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs elsewhere."""


def closed_loop(
    answer: Callable[[Sequence[int]], Sequence[int]], prompts: Sequence[Sequence[int]], users: int
) -> Served:
    """`users` at a time who each send the next prompt when the last one is answered; `answer` gives its token ids."""
    started = time.perf_counter()
    if users == 1:
        answers = [answer(prompt) for prompt in prompts]
    else:
        with ThreadPoolExecutor(users) as pool:
            answers = list(pool.map(answer, prompts))
    return Served(time.perf_counter() - started, tuple(map(tuple, answers)))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the peer was not ready after {START_SECONDS:.0f} s")
        time.sleep(0.2)
