"""This engine and others on the same prompts with the same lengths, driven in process, prompts included in the time.

    python benchmarks/serving_peers.py PROMPTS --concurrency 1 8 32 64 --repeats 3 --json peers.json \
        --vllm-python VENV/bin/python --llama-server BUILD/bin/llama-server --transformers

Each engine is handed `--requests` prompts at once, runs as many at a time as there are users, and writes exactly
--max-tokens for each; what counts is all tokens over the time from first to last. Engines take turns in random order
within a repeat, whose prompts no other repeat has; ratios are taken within repeats, and their median and range printed.
Each keeps its own defaults otherwise, prefix caching included. Peers need environments of their own: vLLM that of an
interpreter that has it, llama.cpp a built server; transformers answers one prompt at a time, and only where there is
one user.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peer_engines import LlamaServer, Peer, Served, Transformers, vllm
from benchmarks.single_stream import machine
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.engine_options import EngineOptions
from dspark.engine.models import Models, open_models
from dspark.evaluation.bench.arms import find_arms
from dspark.evaluation.bench.benchmark import encoded
from dspark.evaluation.bench.drive import drive
from dspark.evaluation.bench.engines import ArmEngines
from dspark.evaluation.bench.load import Closed
from dspark.evaluation.bench.workload import Workload
from dspark.evaluation.prompts import read_prompt_sets
from dspark.targets.embedded import converted_directory, wheel_file
from dspark.types import SamplingParams

TARGET, OURS = "smollm2-135m", "dspark"
WARM_PROMPTS, WARM_TOKENS = 2, 8


class Ours:
    """This engine, one arm of `dspark bench`, fresh for every run."""

    def __init__(self, models: Models, arm: str, users: int, lookup: bool) -> None:
        options = EngineOptions(max_requests=users)
        self._arm, self._users = find_arms([arm])[0], users
        self._engines = ArmEngines(models, options, lookup=PromptLookup() if lookup else None)

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Served:
        """As `Peer`."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        workload = Workload(Closed(self._users), prompts, params, len(prompts), warmup=0, steady=False)
        run = drive(self._engines.build(self._arm), workload)
        return Served(run.seconds, sum(trace.tokens for trace in run.measured))

    def __enter__(self) -> "Ours":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs elsewhere."""


def compare(
    peers: Mapping[str, Peer], repeats: Sequence[Sequence[Sequence[int]]], max_tokens: int, seed: int = 0
) -> dict[str, list[float]]:
    """Tokens per second of every engine in every repeat, whose prompts are given; RuntimeError for missing tokens."""
    speeds: dict[str, list[float]] = {name: [] for name in peers}
    for number, prompts in enumerate(repeats):
        for name in random.Random(f"{seed} {number}").sample(list(peers), len(peers)):
            served = peers[name].serve(prompts, max_tokens)
            if served.tokens != len(prompts) * max_tokens:
                raise RuntimeError(f"{name} wrote {served.tokens} tokens, not {max_tokens} for {len(prompts)} prompts")
            speeds[name].append(served.speed)
    return speeds


def ratios(speeds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """[median, least, most] of our speed over each other engine's, within repeats."""
    found = {}
    for name, own in speeds.items():
        if name != OURS:
            each = [a / b for a, b in zip(speeds[OURS], own, strict=True)]
            found[name] = [median(each), min(each), max(each)]
    return found


def main() -> None:
    """Run all levels and print a JSON line for each."""
    args = arguments()
    models = open_models(TARGET, args.drafter)
    prompts = encoded(models.codec, read_prompt_sets(args.sets), args.max_prompt_tokens)
    random.Random(args.seed).shuffle(prompts)
    max_len = args.max_prompt_tokens + args.max_tokens
    rows: list[dict[str, Any]] = []
    for users in args.concurrency:
        requests = args.requests or max(2 * users, 9)
        if len(prompts) < args.repeats * requests + WARM_PROMPTS:
            raise SystemExit(f"{len(prompts)} prompts are too few for {args.repeats} repeats of {requests}")
        repeats = [prompts[i * requests : (i + 1) * requests] for i in range(args.repeats)]
        with ExitStack() as stack:
            peers = {name: stack.enter_context(peer) for name, peer in opened(args, models, users, max_len).items()}
            for peer in peers.values():
                peer.serve(prompts[-WARM_PROMPTS:], WARM_TOKENS)
            speeds = compare(peers, repeats, args.max_tokens, args.seed)
        engines = {name: {"tokens_per_second": median(own), "per_repeat": own} for name, own in speeds.items()}
        rows.append({"concurrency": users, "requests": requests, "engines": engines, "over": ratios(speeds)})
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        settings = {name: str(value) for name, value in vars(args).items() if not isinstance(value, Path | list)}
        args.json.write_text(json.dumps({"machine": machine(), "settings": settings, "rows": rows}, indent=1) + "\n")


def opened(args: argparse.Namespace, models: Models, users: int, max_len: int) -> dict[str, Peer]:
    """Ours, and the peers that the command line names."""
    peers: dict[str, Peer] = {OURS: Ours(models, args.arm, users, args.lookup)}
    if args.vllm_python:
        peers["vllm"] = vllm(args.vllm_python, args.model or converted_directory(), users, max_len)
    if args.llama_server:
        peers["llama.cpp"] = LlamaServer(args.llama_server, args.gguf or wheel_file(), users, max_len)
    if args.transformers and users == 1:
        peers["transformers"] = Transformers(args.model or converted_directory())
    return peers


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="JSONL prompt sets, or a directory of them")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, help="prompts of a run (default: two a user, at least nine)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-prompt-tokens", type=int, default=512, help="longer prompts are left out")
    parser.add_argument("--arm", default="lagged", help="how this engine runs (see `dspark bench --help`)")
    parser.add_argument("--lookup", action="store_true", help="copy where the text repeats itself, too")
    parser.add_argument("--drafter", type=Path, help="drafter directory (default: the shipped one)")
    parser.add_argument("--vllm-python", type=Path, help="interpreter of an environment with vLLM")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server")
    parser.add_argument("--transformers", action="store_true", help="transformers' generate, at one user")
    parser.add_argument("--model", type=Path, help="Hugging Face directory for peers (default: the embedded target's)")
    parser.add_argument("--gguf", type=Path, help="model of llama.cpp (default: the embedded target's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
