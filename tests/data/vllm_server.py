"""A server that answers like vLLM with extract_hidden_states: it writes a file a request, under a lock."""

import fcntl
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

States = Callable[[list[int]], Tensor]
"""Hidden states [S, L, d] of token ids."""


class VllmServer:
    """Writes `states` of each prompt to `storage`, after it has replied; the first `busy` requests get a 503.

    `named` is the folder that replies name, as seen by the server; None replies without a file.
    """

    def __init__(self, storage: Path, states: States, named: Path | None, busy: int = 0, locks: bool = True) -> None:
        self.bodies: list[dict] = []
        self.storage = storage
        lock, left = threading.Lock(), [busy]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:  # noqa: N805
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                with lock:
                    number, refuse = len(self.bodies), left[0] > 0
                    left[0] -= 1
                    self.bodies.append(body | {"path": handler.path})
                if refuse:
                    return handler.answer(503, {"error": {"message": "busy"}})
                file = storage / f"cmpl-{number}.safetensors"
                tensors = {"hidden_states": states(body["prompt"]), "token_ids": torch.tensor(body["prompt"])}
                params = None if named is None else {"hidden_states_path": str(named / file.name)}
                if not locks:
                    save_file(tensors, file)
                    return handler.answer(200, self.reply(body, params))
                with file.with_name(file.name + ".lock").open("w") as guard:
                    fcntl.flock(guard, fcntl.LOCK_EX)
                    handler.answer(200, self.reply(body, params))
                    time.sleep(0.05)  # the reply is out, the file is not
                    save_file(tensors, file)
                return None

            def answer(handler, status: int, value: dict) -> None:  # noqa: N805
                data = json.dumps(value).encode()
                handler.send_response(status)
                handler.send_header("Content-Length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data)
                handler.wfile.flush()

            def log_message(handler, *args: object) -> None:  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @staticmethod
    def reply(body: dict, params: dict | None) -> dict:
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_token_ids": body["prompt"]}
        return {"object": "text_completion", "choices": [choice], "kv_transfer_params": params}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
