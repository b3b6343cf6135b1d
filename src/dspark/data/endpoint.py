"""Answers from an OpenAI-compatible endpoint: many requests in flight, patient with a busy server, not a dead one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from dspark.data.answer_source import Backlog, Failure, Outcome, Question, Reply
from dspark.data.backoff import Backoff
from dspark.data.openai_protocol import OpenAIProtocol
from dspark.errors import ConfigError, DependencyError, EndpointError, FormatError

if TYPE_CHECKING:
    from httpx2 import AsyncBaseTransport, AsyncClient, Response

BUSY = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses that may pass."""

MISCONFIGURED = frozenset({401, 403, 404, 405})
"""Statuses that every request would get."""

_HOPELESS = 8
"""Questions in a row, all attempts of each in vain, after which nobody is asked any more."""

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask, and how hard: `url` as OpenAI clients take it, with or without /v1; `timeout` in seconds.

    `transport` stands in for the network, and `sleep` for time, in tests.
    """

    url: str
    api_key: str = field(default="", repr=False)
    concurrency: int = 32
    timeout: float = 600.0
    backoff: Backoff = field(default_factory=Backoff)
    transport: "AsyncBaseTransport | None" = None
    sleep: Sleep = asyncio.sleep

    def address(self, path: str) -> str:
        """The full address of a call."""
        base = self.url.rstrip("/")
        return f"{base if base.endswith('/v1') else f'{base}/v1'}/{path}"

    def client(self) -> "AsyncClient":
        """A client that keeps as many connections as requests may be in flight.

        Raises:
            DependencyError: httpx2 is not installed.
            ConfigError: the url is none.
        """
        try:
            import httpx2
        except ImportError as error:
            raise DependencyError("Asking an endpoint needs httpx2: pip install 'dspark[data]'") from error
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint {self.url!r} is no address; expected something like http://localhost:8000/v1")
        limits = httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
        timeout = httpx2.Timeout(self.timeout, connect=min(self.timeout, 10.0))
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx2.AsyncClient(headers=headers, limits=limits, timeout=timeout, transport=self.transport)


class EndpointAnswers:
    """An `AnswerSource` that asks `endpoint`."""

    def __init__(self, endpoint: Endpoint, protocol: OpenAIProtocol, random: Random) -> None:
        self._endpoint, self._protocol, self._random = endpoint, protocol, random
        self._in_vain = 0

    def answers(self, backlog: Backlog) -> Iterator[Outcome]:
        """Outcomes as they arrive.

        Raises:
            EndpointError: it cannot be reached, refuses every request, or fails whatever is asked.
            CompatibilityError: it renders chats differently.
        """
        client = self._endpoint.client()
        running: set[asyncio.Task[Outcome]] = set()
        with asyncio.Runner() as runner:
            try:
                while self._fill(running, backlog, client, runner):
                    done, running = runner.run(_first(running))
                    for task in sorted(done, key=_failed):  # answers before the error that ends the run
                        yield self._noted(task.result())
            finally:
                runner.run(_end(running, client))

    def _fill(
        self, running: set[asyncio.Task[Outcome]], backlog: Backlog, client: "AsyncClient", runner: asyncio.Runner
    ) -> bool:
        """Ask as much as may be in flight; whether anything is."""
        while len(running) < self._endpoint.concurrency and (question := backlog.take()) is not None:
            running.add(runner.get_loop().create_task(self._ask(client, question)))
        return bool(running)

    def _noted(self, outcome: Outcome) -> Outcome:
        """Count what was in vain, and give up when nothing else happens."""
        tried = isinstance(outcome.result, Failure) and outcome.result.attempts == self._endpoint.backoff.attempts
        self._in_vain = self._in_vain + 1 if tried else 0
        if self._in_vain >= _HOPELESS and isinstance(outcome.result, Failure):
            raise EndpointError(
                f"{self._endpoint.url} failed {self._in_vain} prompts in a row, each {outcome.result.attempts} times: "
                f"{outcome.result.reason}"
            )
        return outcome

    async def _ask(self, client: "AsyncClient", question: Question) -> Outcome:
        backoff, attempt = self._endpoint.backoff, 0
        while True:
            attempt += 1
            result = await self._attempt(client, question)
            if isinstance(result, Reply):
                return Outcome(question, result)
            if not result.may_pass:
                return Outcome(question, Failure(result.reason, attempt))
            if attempt >= backoff.attempts:
                if result.unreachable:
                    raise EndpointError(
                        f"{self._endpoint.url} cannot be reached ({result.reason}), tried {attempt} times"
                    )
                return Outcome(question, Failure(result.reason, attempt))
            await self._endpoint.sleep(backoff.wait(attempt, result.asked_wait, self._random))

    async def _attempt(self, client: "AsyncClient", question: Question) -> "Reply | _Setback":
        import httpx2

        try:
            address = self._endpoint.address(self._protocol.path)
            response = await client.post(address, json=self._protocol.request(question))
            if not response.is_success:
                return self._refused(response)
            return self._protocol.reply(question, response.json())
        except httpx2.InvalidURL as error:
            raise ConfigError(f"endpoint {self._endpoint.url!r} is no address: {error}") from error
        except httpx2.RequestError as error:
            lost = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            return _Setback(f"{type(error).__name__}: {error}".rstrip(": "), unreachable=lost)
        except (FormatError, ValueError) as error:  # half a reply, or one that means nothing
            return _Setback(f"unusable reply: {error}")

    def _refused(self, response: "Response") -> "_Setback":
        status, reason = response.status_code, f"HTTP {response.status_code}: {_message(response)}"
        if status in MISCONFIGURED:
            raise EndpointError(
                f"{response.url} refuses: {reason}. Check the address, the model's name and the API key"
            )
        return _Setback(reason, may_pass=status in BUSY, asked_wait=_seconds(response.headers.get("Retry-After")))


@dataclass(frozen=True, slots=True)
class _Setback:
    """An attempt in vain, and what it says about the next."""

    reason: str
    may_pass: bool = True
    unreachable: bool = False
    asked_wait: float | None = None


def _failed(task: asyncio.Task[Outcome]) -> bool:
    return task.exception() is not None


async def _first(
    running: set[asyncio.Task[Outcome]],
) -> tuple[set[asyncio.Task[Outcome]], set[asyncio.Task[Outcome]]]:
    return await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


async def _end(running: set[asyncio.Task[Outcome]], client: "AsyncClient") -> None:
    """Leave nothing in flight."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await client.aclose()


def _message(response: "Response") -> str:
    """What a server says about an error, on one short line."""
    try:
        body = response.json()
        error = body.get("error", body)
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = response.text or response.reason_phrase
    return " ".join(str(text).split())[:200]


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:  # a date; our own waits will do
        return None
