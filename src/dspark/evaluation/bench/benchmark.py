"""A whole benchmark: engines, prompts and what is asked of them, run by run."""

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dspark.data.chat import user_turn
from dspark.data.text import TextCodec
from dspark.drafters.drafter_module import DrafterModule
from dspark.engine.profile_store import ProfileKey
from dspark.evaluation.bench.arms import ARMS
from dspark.evaluation.bench.engines import ArmEngines
from dspark.evaluation.bench.load import Load
from dspark.evaluation.bench.run_figures import RunFigures, run_figures
from dspark.evaluation.bench.runs import Setting
from dspark.evaluation.bench.trace import Run
from dspark.evaluation.bench.turns import TurnClock, drive_in_turns
from dspark.evaluation.bench.workload import Workload, mixed
from dspark.evaluation.prompts import PromptSet
from dspark.nn.compiled.linear import CompiledLinear
from dspark.nn.pages import pages_for
from dspark.types import SamplingParams

WAVES, LEAST_REQUESTS = 2, 18
"""By default every user of a closed loop is measured so often, and a run so many times at least."""

SPARE = 64
"""Positions behind a request's last one that a block of drafts may take."""

OPEN_REQUESTS, OPEN_WARMUP = 100, 0.2
"""Measured requests of an open loop by default, and the share of them that comes before."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured: `requests` of each run (None: by the load), `steady` as in `Workload`."""

    requests: int | None = None
    steady: bool = True

    def of(self, load: Load) -> tuple[int, int]:
        """(measured requests, those of the warm-up) of a run."""
        if load.users is None:
            requests, warmup = self.requests or OPEN_REQUESTS, round(OPEN_WARMUP * (self.requests or OPEN_REQUESTS))
        else:
            requests, warmup = self.requests or max(WAVES * load.users, LEAST_REQUESTS), load.users
        return requests, warmup if self.steady else 0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Runs settings on fresh engines; a repeat asks all arms the same. `steps` is a file for the steps of all runs."""

    engines: ArmEngines
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    amount: Amount = Amount()
    seed: int = 0
    steps: Path | None = None

    def workload(self, load: Load) -> Workload:
        """What a run of `load` asks. Raises ConfigError if that cannot be."""
        return Workload(load, self.prompts, self.params, *self.amount.of(load), steady=self.amount.steady)

    def run(self, settings: Sequence[Setting], watch: Callable[[int], None] = lambda ended: None) -> list[RunFigures]:
        """Runs of several arms side by side, under one load. `watch` is told how many measured requests have ended."""
        gc.collect()  # the engines before these, before these ask for as much memory
        load, repeat = settings[0].load, settings[0].repeat
        workload, clocks = self.workload(load), [TurnClock() for _ in settings]
        pages = self._pages(load)
        cores = [self.engines.build(ARMS[one.arm], clock, pages) for one, clock in zip(settings, clocks, strict=True)]
        runs = drive_in_turns(list(zip(cores, clocks, strict=True)), workload, self.seed + repeat, watch=watch)
        if self.steps is not None:
            for setting, run in zip(settings, runs, strict=True):
                _append_steps(self.steps, setting, run)
        return [run_figures(run) for run in runs]

    def _pages(self, load: Load) -> int:
        """What the requests of a load can need at most, for arms side by side to have equal memory, and all room."""
        info, longest = self.engines.models.target.info, max(map(len, self.prompts)) + self.params.max_tokens
        at_once = min(load.users or self.engines.options.max_requests, self.engines.options.max_requests)
        return at_once * (pages_for(min(longest, info.max_positions) + SPARE) + 1)

    def common(self) -> dict[str, Any]:
        """What all runs have in common: what a journal is made with."""
        models, mtp = self.engines.models, self.engines.mtp
        options = asdict(self.engines.options)
        return {
            **asdict(ProfileKey.of(models)),
            "target": models.target.info.name,
            "method": "side by side",
            "drafter_packing": _packing(models.drafter),
            "mtp_hash": None if mtp is None else mtp.drafter_hash(),
            "prompts": sha256(json.dumps([list(prompt) for prompt in self.prompts]).encode()).hexdigest()[:16],
            "sampling": asdict(self.params),
            "amount": asdict(self.amount),
            "seed": self.seed,
            "lookup": None if self.engines.lookup is None else asdict(self.engines.lookup),
            "engine": {
                name: options[name] for name in ("max_requests", "max_batched_tokens", "prefill_chunk", "overlap")
            },
        }


def encoded(codec: TextCodec, sets: Sequence[PromptSet], longest: int | None = None) -> list[Sequence[int]]:
    """First turns as chats, sets in turn, without those above `longest` tokens."""
    return mixed([[codec.encode_chat(user_turn(p.turns[0])) for p in one.prompts] for one in sets], longest)


def _packing(drafter: DrafterModule | None) -> str | None:
    """How the drafter's matrices lie in memory, where a compiled kernel multiplies them."""
    head = None if drafter is None else drafter.packed_head
    return head.packing.name if isinstance(head, CompiledLinear) else None


def _append_steps(path: Path, setting: Setting, run: Run) -> None:
    arm, kind, level, repeat, _ = setting.key
    which: Mapping[str, Any] = {"arm": arm, "load": kind, "level": level, "repeat": repeat}
    with path.open("a", encoding="utf-8") as file:
        for step in run.steps:
            file.write(json.dumps({**which, "ended": step.ended - run.start, **asdict(step.stats)}) + "\n")
