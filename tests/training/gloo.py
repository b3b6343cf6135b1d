"""Real processes joined by gloo, forked from a server that has torch loaded already: a start takes milliseconds."""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

SECONDS = 240.0


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.gloo_preload"])
    return context


def gloo(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(*arguments)` in each of `size` joined processes; their results by rank. Errors end the test."""
    context = _context()
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        members = started(size, Path(folder), _reporting, (results, function, arguments))
        try:
            found = dict(results.get(timeout=SECONDS) for _ in members)
        finally:
            for member in members:
                member.join(10)
                member.kill()
    for failure in found.values():
        if isinstance(failure, _Failure):
            raise AssertionError(failure.text)
    return [pickle.loads(found[rank]) for rank in range(size)]  # noqa: S301


def started(size: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[BaseProcess]:
    """`size` running processes that call `function(rank, *arguments)` once they have met; the caller ends them."""
    context = _context()
    members = [
        context.Process(target=_member, args=(rank, size, folder, function, arguments), daemon=True)
        for rank in range(size)
    ]
    for member in members:
        member.start()
    return members


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _member(rank: int, size: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if size > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=SECONDS),
        )
    try:
        function(rank, *arguments)
    finally:
        if size > 1:
            torch.distributed.destroy_process_group()


def _reporting(rank: int, results: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        # Pickled here, tensors are copied; a queue of its own would share memory that ends with this process.
        results.put((rank, pickle.dumps(function(*arguments))))
    except BaseException:
        results.put((rank, _Failure(traceback.format_exc())))
