"""A run whose processes are killed by SIGKILL, again and again and also inside a save, ends bit for bit like another.

Compared are the state (parameters, moments, step, schedule, whatever the header says), the exported drafter, and every
figure of every step in the log: random choices and the position in the data show there.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from dspark.training import state as state_module
from dspark.training.recipe import Recipe
from dspark.training.run import train
from dspark.training.trainer import Cadence
from dspark.training.world import ALONE, World
from tests.training.gloo import started
from tests.training.test_run import write_answers
from tests.training.tiny import TinyTarget, tiny_answers, tiny_recipe

STEPS = 8
PATIENCE = 200.0
Before = Callable[[int], None]


def recipe_for(answers: Path) -> Recipe:
    tree = tiny_recipe(total_steps=STEPS).model_dump()
    tree["data"] |= {"answers": answers, "answers_per_step": 4, "micro_batches": 2}
    return Recipe.model_validate(tree)


def work(rank: int, answers: Path, directory: Path, before: Before | None) -> None:
    """One process of the run; it saves after every step."""
    if before is not None:
        before(rank)
    world = World.of(torch.distributed.group.WORLD) if torch.distributed.is_initialized() else ALONE
    train(recipe_for(answers), TinyTarget(), directory, cadence=Cadence(2, 0.0), world=world)


def start(size: int, tmp_path: Path, name: str, before: Before | None = None) -> list[BaseProcess]:
    meeting = tmp_path / "meetings" / str(time.monotonic_ns())
    meeting.mkdir(parents=True)
    answers = write_answers(tmp_path / "answers.jsonl.gz", tiny_answers())
    return started(size, meeting, work, (answers, tmp_path / name, before))


def finish(members: list[BaseProcess]) -> None:
    for member in members:
        member.join(PATIENCE)
    assert [member.exitcode for member in members] == [0] * len(members)


def kill(members: list[BaseProcess]) -> None:
    """At once and for good: nothing of the processes runs after this, as when a machine goes down."""
    for member in members:
        member.kill()
    for member in members:
        member.join(PATIENCE)


def assert_same_end(found: Path, expected: Path) -> None:
    for name in ("state", "stable", "drafter", "best"):
        files = {path.name for path in (expected / name).iterdir()}
        assert {path.name for path in (found / name).iterdir()} == files
        for file in files:
            assert contents(found / name / file) == contents(expected / name / file), f"{name}/{file}"
    assert figures(found) == figures(expected)
    assert [row["step"] for row in figures(found)] == list(range(1, STEPS + 1))


def contents(file: Path) -> Any:
    """All bytes; of tensors by name, because safetensors writes its notes in any order."""
    if file.suffix != ".safetensors":
        return file.read_bytes()
    with safe_open(file, framework="pt") as tensors:
        by_name = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        return tensors.metadata(), {
            n: (t.dtype, t.shape, bytes(t.reshape(-1).view(torch.uint8).tolist())) for n, t in by_name.items()
        }


def figures(directory: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    clocks = ("time", "seconds", "cpu_seconds")
    return [{key: value for key, value in row.items() if key not in clocks} for row in rows]


def lines(directory: Path) -> int:
    log = directory / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_kills_at_random_moments(tmp_path: Path, size: int) -> None:
    """Three kills, each some milliseconds after a step: in the next step, in its evaluation, or in its save."""
    finish(start(size, tmp_path, "straight"))
    moments, landed = random.Random(size), 0
    for steps in (2, 4, 6):
        members = start(size, tmp_path, "killed")
        deadline = time.monotonic() + PATIENCE
        while lines(tmp_path / "killed") < steps and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.05))
        landed += any(member.is_alive() for member in members)
        kill(members)
    assert landed == 3
    finish(start(size, tmp_path, "killed"))
    assert_same_end(tmp_path / "killed", tmp_path / "straight")


class InSave:
    """Kills its process at the n-th move, removal or writing of a file in saves, counted from the second step on."""

    def __init__(self, rank: int, moment: int) -> None:
        self.rank, self.moment, self.count = rank, moment, 0

    def __call__(self, rank: int) -> None:
        if rank != self.rank:
            return
        rename, rmtree, write = Path.rename, shutil.rmtree, state_module.save_file
        shards = state_module.save_shards
        Path.rename = lambda path, to: self.then(lambda: rename(path, to))
        shutil.rmtree = lambda path, **options: self.then(lambda: rmtree(path, **options))
        state_module.save_file = lambda *arguments: self.then(lambda: write(*arguments))
        state_module.save_shards = lambda *arguments: self.then(lambda: shards(*arguments))

    def then(self, operation: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_kills_inside_saves(tmp_path: Path, size: int, rank: int) -> None:
    """The one that dies takes the others with it, as torchrun does. The leading process moves and removes, too."""
    finish(start(size, tmp_path, "straight"))
    for moment in (8, 9, 10, 11) if rank == 0 else (2,):
        members = start(size, tmp_path, "killed", InSave(rank, moment))
        members[rank].join(PATIENCE)
        assert members[rank].exitcode == -signal.SIGKILL
        kill(members)
    finish(start(size, tmp_path, "killed"))
    assert_same_end(tmp_path / "killed", tmp_path / "straight")
