"""Other engines behind one interface: the same prompts as token ids, as many new tokens, so many users at a time."""

import json
import socket
import subprocess
import tempfile
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
START_SECONDS = 600.0
"""What a peer may take to be ready."""


@dataclass(frozen=True, slots=True)
class Served:
    """All prompts of one run answered: seconds from the first to the last token, prompts read meanwhile."""

    seconds: float
    tokens: int

    @property
    def speed(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds


class Peer(Protocol):
    """An engine that is ready for `users` at a time; a context manager that ends it."""

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Served:
        """Answer `prompts` greedily with exactly `max_tokens` each."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Worker:
    """A process that answers JSON lines, told how to open its model by the first. RuntimeError if it dies."""

    def __init__(self, command: Sequence[str], opening: Mapping[str, Any]) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115, open as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.ask(opening)

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the peer died:\n{self._errors.read()[-2000:]}")
        return dict(json.loads(line))

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Served:
        """As `Peer`."""
        answer = self.ask({"prompts": [list(prompt) for prompt in prompts], "max_tokens": max_tokens})
        return Served(answer["seconds"], answer["tokens"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError), self._process:  # closes its pipes and waits: without input, it ends
            pass
        self._errors.close()


def vllm(python: Path, model: Path, users: int, max_len: int) -> Worker:
    """vLLM under the interpreter `python`, on a Hugging Face directory."""
    opening = {"model": str(model), "users": users, "max_len": max_len, "threads": torch.get_num_threads()}
    return Worker([str(python), str(WORKER)], opening)


class LlamaServer:
    """llama.cpp's `llama-server` on a GGUF file, with `users` slots, and as many client threads."""

    def __init__(self, server: Path, model: Path, users: int, max_len: int) -> None:
        self._users, port = users, _free_port()
        self._url = f"http://127.0.0.1:{port}"
        sizes = ["-t", torch.get_num_threads(), "-c", users * max_len, "-np", users, "--port", port]
        self._process = subprocess.Popen(
            [str(server), "-m", str(model), *map(str, sizes)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _wait(self._ready)

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Served:
        """As `Peer`."""
        return closed_loop(lambda prompt: self._answer(prompt, max_tokens), prompts, self._users)

    def _answer(self, prompt: Sequence[int], max_tokens: int) -> int:
        body = {
            "prompt": list(prompt), "n_predict": max_tokens, "temperature": 0.0, "ignore_eos": True,
            "cache_prompt": False,
        }  # fmt: skip
        request = urllib.request.Request(f"{self._url}/completion", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
            return int(json.load(response)["tokens_predicted"])

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
    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Served:
        """As `Peer`."""
        return closed_loop(lambda prompt: self._answer(prompt, max_tokens), prompts, 1)

    def _answer(self, prompt: Sequence[int], max_tokens: int) -> int:
        ids = torch.tensor([list(prompt)])
        limits = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens}
        output = self._model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **limits)
        return int(output.shape[1] - ids.shape[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs elsewhere."""


def closed_loop(answer: Callable[[Sequence[int]], int], prompts: Sequence[Sequence[int]], users: int) -> Served:
    """`users` at a time who each send the next prompt when the last one is answered; `answer` gives its tokens."""
    started = time.perf_counter()
    if users == 1:
        tokens = sum(answer(prompt) for prompt in prompts)
    else:
        with ThreadPoolExecutor(users) as pool:
            tokens = sum(pool.map(answer, prompts))
    return Served(time.perf_counter() - started, tokens)


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
