"""States from a server that behaves like vLLM's extraction: late files, locks, other layers, other tokens."""

import fcntl

import pytest
import torch
from safetensors.torch import save_file

from dspark.data.backoff import Backoff
from dspark.data.endpoint import Endpoint
from dspark.data.vllm_states import VllmStates, extraction_layers, read_states
from dspark.errors import CompatibilityError, EndpointError, FormatError
from dspark.types import AFTER_NORM
from tests.data.vllm_server import VllmServer

pytest.importorskip("httpx2", reason="needs the extra `data`")

LAYERS = (1, 4, 6)


def states(token_ids):
    """Every number tells its token, layer and column."""
    tokens = torch.tensor(token_ids, dtype=torch.float32)
    return (tokens[:, None, None] * 100 + torch.arange(3)[:, None] * 10 + torch.arange(5)).bfloat16()


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(storage=tmp_path, source=states, named=tmp_path, **options):
        servers.append(VllmServer(storage, source, named, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def client(server, attempts=3, **options):
    endpoint = Endpoint(server.url, timeout=20.0, backoff=Backoff(attempts, 0.01, 0.01))
    return VllmStates(endpoint, "served", LAYERS, **options)


@pytest.mark.parametrize("locks", [True, False])
def test_states_come_in_order_and_files_go(serve, tmp_path, locks):
    server = serve(locks=locks)
    sequences = [[5, 6, 7], [8], [9, 10]]
    found = client(server).of(sequences)
    assert all(torch.equal(one, states(ids)) for one, ids in zip(found, sequences, strict=True))
    assert list(tmp_path.iterdir()) == []
    body = next(body for body in server.bodies if body["prompt"] == [5, 6, 7])
    assert (body["path"], body["model"], body["max_tokens"]) == ("/v1/completions", "served", 1)


def test_the_storage_may_be_mounted_elsewhere(serve, tmp_path):
    server = serve(named=tmp_path / "as" / "the" / "server" / "sees" / "it")
    assert torch.equal(client(server, storage=tmp_path).of([[5, 6]])[0], states([5, 6]))


def test_a_busy_server_is_asked_again_and_a_dead_one_given_up(serve):
    assert len(client(serve(busy=2)).of([[5, 6]])) == 1
    with pytest.raises(EndpointError, match="tried 2 times: HTTP 503"):
        client(serve(busy=9), attempts=2).of([[5, 6]])
    gone = serve()
    gone.stop()
    with pytest.raises(EndpointError, match="gave no hidden states, tried 2 times"):
        client(gone, attempts=2).of([[5]])


def test_a_server_without_extraction_is_told_apart(serve):
    with pytest.raises(EndpointError, match="extract_hidden_states"):
        client(serve(named=None)).of([[5]])


def test_other_layers_and_other_tokens_are_refused(serve):
    with pytest.raises(CompatibilityError, match=r"eagle_aux_hidden_state_layer_ids \[1, 4, 6\]"):
        client(serve(source=lambda ids: states(ids)[:, :2].contiguous())).of([[5, 6]])
    with pytest.raises(CompatibilityError, match="expected 2 tokens"):  # chunked prefill keeps the last chunk only
        client(serve(source=lambda ids: states(ids)[1:].contiguous())).of([[5, 6]])


def test_a_file_of_other_tokens_is_refused(serve, tmp_path, monkeypatch):
    server = serve()
    monkeypatch.setattr(
        "dspark.data.vllm_states.read_states",
        lambda path, wait: {"token_ids": torch.tensor([5, 7]), "hidden_states": states([5, 7])},
    )
    with pytest.raises(CompatibilityError, match="other tokens"):
        client(server).of([[5, 6]])


def test_a_lock_that_is_never_freed_and_a_file_that_never_comes(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(FormatError, match="shared_storage_path"):
        read_states(path, 1.0)
    with (tmp_path / "a.safetensors.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        with pytest.raises(FormatError, match="still held"):
            read_states(path, 0.05)
    save_file({"token_ids": torch.tensor([1])}, path)
    with pytest.raises(FormatError, match="holds no hidden states"):
        read_states(path, 1.0)


def test_layers_are_numbered_by_what_they_enter():
    """transformers' hidden_states index: ours + 1, and the number of layers for the last."""
    assert extraction_layers((1, 8, 15, 22, 28), 30) == (2, 9, 16, 23, 29, 30)
    assert extraction_layers((3, -1), 4) == (0, 4)
    assert extraction_layers((AFTER_NORM, 1), 4) == (2, 4)
