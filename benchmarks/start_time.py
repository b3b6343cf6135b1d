"""How long `dspark.LLM("smollm2-135m").serve()` takes from the start of a process to its first token, phase by phase.

    python -m benchmarks.start_time --repeats 5 --json --doc docs/engine.md

Every start is a fresh process with a cache directory of its own making: `bare` starts with an empty one (weights are
converted, kernels compiled, costs measured; once), `first` with weights and kernels, but no cost profile (the first
start of these models on a machine that has everything else), `warm` with all of it. First and warm starts take turns.
A profile too noisy to be kept is measured again by the next start, which is then no warm one: `profiles_found` counts
the starts that had one.

Told are medians over the repeats of every phase's seconds, less those of phases inside it, and the range of the whole.
CPU seconds of all threads stand beside them, which other work on the machine disturbs less. `--json` writes
docs/results/start_time.json, or another file; `--doc` puts the table between the markers of a document.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.markers import rewrite
from dspark.nn.processor import processor_name

PROMPT = "The capital of France is"
ARMS = ("bare", "first", "warm")
INNER = {
    "convert": ("dspark.targets.embedded", "converted_directory"),
    "compile": ("dspark.nn.kernel_choice", "decoder_library"),
    "target": ("dspark.engine.models", "load_target"),
    "tokenizer": ("dspark.engine.models", "load_tokenizer"),
    "drafter": ("dspark.engine.models", "load_drafter"),
    "profile": ("dspark.engine.llm", "start_profile"),
}
"""Phases inside of `LLM()`, by the module that calls a function and its name there."""

PHASES = ("python", "torch", "dspark", *INNER, "engine", "first token")

Clock = Callable[[], float]


class Phases:
    """Seconds of named phases, each without those that ran inside it."""

    def __init__(self, clock: Clock) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._inside = [0.0]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done meanwhile."""
        started = self._clock()
        self._inside.append(0.0)
        try:
            yield
        finally:
            taken, inner = self._clock() - started, self._inside.pop()
            self._inside[-1] += taken
            self.seconds[name] = self.seconds.get(name, 0.0) + taken - inner

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, every call of which is part of the phase `name`."""

        def timed(*given: Any, **named: Any) -> Any:
            with self.phase(name):
                return function(*given, **named)

        return timed


def start(launched: float) -> dict[str, Any]:
    """Start an engine in this process, which was launched at `launched` of the monotonic clock; what phases took."""
    wall, cpu = Phases(time.monotonic), Phases(time.process_time)
    wall.seconds["python"], cpu.seconds["python"] = time.monotonic() - launched, time.process_time()
    with wall.phase("torch"), cpu.phase("torch"):
        import torch
    with wall.phase("dspark"), cpu.phase("dspark"):
        from dspark import LLM
    for name, (module, function) in INNER.items():
        home = sys.modules[module]
        setattr(home, function, wall.around(name, cpu.around(name, getattr(home, function))))
    with wall.phase("engine"), cpu.phase("engine"):
        llm = LLM("smollm2-135m")
    with wall.phase("first token"), cpu.phase("first token"):
        text = _first_text(llm)
    return {
        "text": text,
        "ready_seconds": time.monotonic() - launched,
        "seconds": wall.seconds,
        "cpu_seconds": cpu.seconds,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _first_text(llm: Any) -> str:
    import asyncio

    from dspark import SamplingParams

    async def first() -> str:
        async with llm.serve() as engine:
            async for event in engine.generate(PROMPT, SamplingParams(max_tokens=8)):
                return str(event.text)
        raise RuntimeError("the engine told nothing")

    return asyncio.run(first())


def launch(cache: Path) -> dict[str, Any]:
    """A start in a fresh process whose cache is `cache`; `profile_found`: it had a cost profile before it started."""
    found = any(cache.glob("profiles/*"))
    command = [sys.executable, "-m", "benchmarks.start_time", "--inside", repr(time.monotonic())]
    done = subprocess.run(
        command, env=os.environ | {"DSPARK_CACHE": str(cache)}, stdout=subprocess.PIPE, text=True, check=True
    )
    return {**json.loads(done.stdout), "profile_found": found}


def run_all(repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Starts by arm."""
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch)
        for arm in ("bare", *("first", "warm") * repeats):
            if arm == "first":
                shutil.rmtree(cache / "profiles", ignore_errors=True)
            runs[arm].append(launch(cache))
            print(f"{arm}: {runs[arm][-1]['ready_seconds']:.2f} s", file=sys.stderr, flush=True)
    return runs


def row(arm: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of one arm."""
    ready = [run["ready_seconds"] for run in runs]
    return {
        "arm": arm,
        "starts": len(runs),
        "ready_seconds": statistics.median(ready),
        "range": [min(ready), max(ready)],
        "cpu_seconds": statistics.median(sum(run["cpu_seconds"].values()) for run in runs),
        "phases": _medians([run["seconds"] for run in runs]),
        "cpu_phases": _medians([run["cpu_seconds"] for run in runs]),
        "profiles_found": sum(run["profile_found"] for run in runs),
    }


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one.get(name, 0.0) for one in found) for name in PHASES}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Seconds, a row an arm; of its phases the CPU's in brackets."""
    lines = [f"| start | ready, s (range) | CPU s | {' | '.join(PHASES)} |", f"|{' --- |' * (3 + len(PHASES))}"]
    for one in rows:
        low, high = one["range"]
        phases = " | ".join(f"{one['phases'][name]:.2f} ({one['cpu_phases'][name]:.2f})" for name in PHASES)
        ready = f"{one['ready_seconds']:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {one['arm']} | {ready} | {one['cpu_seconds']:.2f} | {phases} |")
    return "\n".join(lines)


def settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the figures were made with."""
    machine = {"processor": processor_name() or platform.machine(), "cores": len(os.sched_getaffinity(0))}
    return machine | {"threads": run["threads"], "torch": run["torch"], "load": os.getloadavg()[0]}


def main() -> None:
    """Measure, write what is asked for, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="first and warm starts each")
    parser.add_argument("--json", type=Path, nargs="?", const=Path("docs/results/start_time.json"))
    parser.add_argument("--doc", type=Path, help="rewrite the table between the markers of this file")
    parser.add_argument("--inside", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        print(json.dumps(start(options.inside)))
        return
    runs = run_all(options.repeats)
    rows = [row(arm, found) for arm, found in runs.items()]
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"settings": settings(runs["bare"][0]), "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    if options.doc is not None:
        rewrite(options.doc, "start time", table(rows))


if __name__ == "__main__":
    main()
