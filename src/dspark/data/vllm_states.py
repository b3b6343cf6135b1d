"""Hidden states of a target that another process runs: the seam, and the client of vLLM's extraction output.

vLLM, started with the speculative method `extract_hidden_states` and the connector `ExampleHiddenStatesConnector`,
writes a safetensors file a request: `hidden_states` [S, L, d] and `token_ids` [S]. Its reply names the file, which is
complete once the lock on `FILE.lock` is free. Layer id i is the state that enters decoder layer i, so the output of
layer l goes by l + 1 and the last one, before the final norm, by the number of layers; ids come in ascending order.
Source: vLLM's documentation and connector, 2026.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dspark.data.endpoint import BUSY, Endpoint
from dspark.errors import CompatibilityError, EndpointError, FormatError
from dspark.types import AFTER_NORM

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

_POLL = 0.02
"""Seconds between two looks at a lock."""


class HiddenStates(Protocol):
    """Where states come from. `layers` are ascending layer ids, each the state that enters this decoder layer."""

    @property
    def layers(self) -> tuple[int, ...]: ...

    def of(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """States [S, len(layers), d] of each of `sequences` of S token ids, in order."""
        ...


def extraction_layers(taps: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The layer ids that a server must extract for our `taps` and the last hidden state."""
    return tuple(sorted({tap + 1 for tap in taps if tap != AFTER_NORM} | {num_layers}))


@dataclass(frozen=True, slots=True)
class VllmStates:
    """Asks a vLLM server and reads the files that it writes, then removes them.

    `storage` is where the server's `shared_storage_path` lies on this machine, None if it goes by the same name. `wait`
    is how many seconds a file may take after its reply.
    """

    endpoint: Endpoint
    model: str
    layers: tuple[int, ...]
    storage: Path | None = None
    wait: float = 60.0

    def of(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """States [S, len(layers), d] of every sequence; all are asked for at once.

        Raises:
            EndpointError: the server cannot be reached, refuses, or names no file.
            CompatibilityError: it extracts other layers, or read other tokens.
            FormatError: a file is missing or damaged.
        """
        return asyncio.run(self._all(sequences))

    async def _all(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        random = Random()
        async with self.endpoint.client() as client:
            return list(await asyncio.gather(*(self._one(client, list(ids), random) for ids in sequences)))

    async def _one(self, client: "AsyncClient", token_ids: list[int], random: Random) -> Tensor:
        body = {
            "model": self.model,
            "prompt": token_ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "return_token_ids": True,
        }
        response = await self._posted(client, body, random)
        named = self._path(response)
        path = named if self.storage is None else self.storage / named.name
        tensors = await asyncio.to_thread(read_states, path, self.wait)
        self._check(path, tensors, token_ids)
        return tensors["hidden_states"]

    async def _posted(self, client: "AsyncClient", body: Mapping[str, Any], random: Random) -> "Response":
        import httpx2

        endpoint, attempt = self.endpoint, 0
        while True:
            attempt += 1
            try:
                response = await client.post(endpoint.address("completions"), json=body)
            except httpx2.RequestError as error:
                reason, may_pass = f"{type(error).__name__}: {error}".rstrip(": "), True
            else:
                if response.is_success:
                    return response
                reason, may_pass = f"HTTP {response.status_code}: {response.text[:200]}", response.status_code in BUSY
            if not may_pass or attempt >= endpoint.backoff.attempts:
                raise EndpointError(f"{endpoint.url} gave no hidden states, tried {attempt} times: {reason}")
            await endpoint.sleep(endpoint.backoff.wait(attempt, None, random))

    def _path(self, response: "Response") -> Path:
        try:
            named = response.json()["kv_transfer_params"]["hidden_states_path"]
        except (ValueError, KeyError, TypeError):
            named = None
        if not isinstance(named, str):
            raise EndpointError(
                f"{self.endpoint.url} answers without kv_transfer_params.hidden_states_path. Start vLLM with the "
                "speculative method extract_hidden_states and the ExampleHiddenStatesConnector (docs/features.md)."
            )
        return Path(named)

    def _check(self, path: Path, tensors: Mapping[str, Tensor], token_ids: list[int]) -> None:
        if tensors["token_ids"].tolist() != token_ids:
            raise CompatibilityError(f"{path} holds states of other tokens than were sent. Check the server's model.")
        shape = tuple(tensors["hidden_states"].shape)
        if len(shape) != 3 or shape[:2] != (len(token_ids), len(self.layers)):
            raise CompatibilityError(
                f"{path} holds states of shape {shape}, expected {len(token_ids)} tokens x {len(self.layers)} layers x "
                f"width. Start the server with eagle_aux_hidden_state_layer_ids {list(self.layers)}."
            )


def read_states(path: Path, wait: float) -> dict[str, Tensor]:
    """`hidden_states` and `token_ids` of a file of vLLM's connector, complete; the file and its lock are removed.

    Servers without locks have finished the file before they reply. Raises FormatError if there is nothing to read
    within `wait` seconds.
    """
    lock = path.with_name(path.name + ".lock")
    if lock.is_file():
        with lock.open(encoding="utf-8") as file:
            _await_lock(file, lock, time.monotonic() + wait)
    try:
        tensors = load_file(path)
        states = {name: tensors[name].clone() for name in ("hidden_states", "token_ids")}
    except (OSError, SafetensorError, KeyError) as error:
        raise FormatError(
            f"{path} holds no hidden states ({error!r}). Check that it is the server's shared_storage_path, and that "
            "chunked prefill is off."
        ) from error
    path.unlink(missing_ok=True)
    lock.unlink(missing_ok=True)
    return states


def _await_lock(file: TextIO, lock: Path, deadline: float) -> None:
    """Share the lock that the writer holds alone."""
    import fcntl  # not everywhere where the rest runs

    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise FormatError(f"{lock} is still held: the server has not finished writing. Wait longer.") from None
            time.sleep(_POLL)
