"""This engine and others on the same prompts with the same lengths, driven in process, prompts included in the time.

    python benchmarks/serving_peers.py PROMPTS --concurrency 1 --arm lagged plain --repeats 3 --json single.json \
        --vllm-python VENV/bin/python --llama-server BUILD/bin/llama-server --transformers
    python benchmarks/serving_peers.py PROMPTS --concurrency 8 32 64 --requests 96 --json serving.json \
        --vllm-python VENV/bin/python

Each engine is handed `--requests` prompts, sets in turn, runs as many at a time as there are users, and writes exactly
--max-tokens for each (with --natural-ends, fewer where the model ends); what counts is all tokens over the time from
the first prompt to the last token. Prompts are token ids, so that every engine reads the same, made by this engine's
chat template, which must be the same token for token as the one of transformers. All engines of a level are open and
warm before it is measured. They take turns in random order within a repeat, whose prompts no other repeat has; ratios
are taken within repeats, and their median and range printed. Each keeps its own defaults otherwise, prefix caching
included.

This engine takes part once for every --arm and --kernel; ratios are of the first of both. Peers need environments of
their own: vLLM that of an interpreter that has it, llama.cpp a built server; transformers answers one prompt at a time,
and only where there is one user. `same` is how many tokens an answer begins with, in the mean, that the first engine
wrote, too: engines that round differently part somewhere, but none at once.
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, get_args

from benchmarks.own_engine import OURS, own_engines
from benchmarks.peer_engines import LlamaServer, Peer, Served, Transformers, Worker, vllm
from benchmarks.single_stream import machine
from dspark.data.chat import user_turn
from dspark.data.text import TextCodec
from dspark.engine.models import open_models
from dspark.evaluation.bench.benchmark import encoded
from dspark.evaluation.prompts import PromptSet, read_prompt_sets
from dspark.nn.kernel_choice import KernelName
from dspark.targets.embedded import converted_directory, wheel_file

TARGET = "smollm2-135m"
WARM_TOKENS = 16

SEATS = 64
"""Requests that vLLM is opened for, or more if there are more users: what it has compiled is kept for each number."""


def compare(
    peers: Mapping[str, Peer],
    repeats: Sequence[Sequence[Sequence[int]]],
    max_tokens: int,
    natural: bool = False,
    seed: int = 0,
) -> dict[str, list[Served]]:
    """What every engine made of every repeat, whose prompts are given; RuntimeError for missing tokens."""
    runs: dict[str, list[Served]] = {name: [] for name in peers}
    for number, prompts in enumerate(repeats):
        for name in random.Random(f"{seed} {number}").sample(list(peers), len(peers)):
            served = peers[name].serve(prompts, max_tokens, natural)
            lengths = [len(answer) for answer in served.answers]
            right = range(1, max_tokens + 1) if natural else (max_tokens,)
            if len(lengths) != len(prompts) or not all(length in right for length in lengths):
                raise RuntimeError(
                    f"{name} wrote {lengths} tokens, not {max_tokens} for each of {len(prompts)} prompts"
                )
            runs[name].append(served)
            print(f"{name}: {served.speed:.1f} tokens/s in {served.seconds:.1f} s", file=sys.stderr, flush=True)
    return runs


def ratios(runs: Mapping[str, Sequence[Served]]) -> dict[str, list[float]]:
    """[median, least, most] of our speed over each other engine's, within repeats."""
    found = {}
    for name, own in runs.items():
        if name != OURS:
            each = [a.speed / b.speed for a, b in zip(runs[OURS], own, strict=True)]
            found[name] = [median(each), min(each), max(each)]
    return found


def same(runs: Mapping[str, Sequence[Served]]) -> dict[str, float]:
    """How many tokens an answer begins with, in the mean, that are ours."""
    return {
        name: fmean(
            leading(a, b)
            for ours, theirs in zip(runs[OURS], own, strict=True)
            for a, b in zip(ours.answers, theirs.answers, strict=True)
        )
        for name, own in runs.items()
        if name != OURS
    }


def leading(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def main() -> None:
    """Run all levels; print a JSON line for each, and a table of all."""
    args = arguments()
    models = open_models(TARGET, args.drafter)
    prompts = mix(read_prompt_sets(args.sets), models.codec, args.max_prompt_tokens, args.seed)
    check_template(args, models.codec)
    own = own_engines(models, TARGET, args.arm, args.kernel, not args.without_lookup)
    max_len = args.max_prompt_tokens + args.max_tokens
    rows: list[dict[str, Any]] = []
    with ExitStack() as whole:
        worker = None
        if args.vllm_python:
            model = args.model or converted_directory()
            worker = whole.enter_context(
                vllm(args.vllm_python, model, max(SEATS, *args.concurrency), max_len, args.vllm_log)
            )
        for users in args.concurrency:
            repeats, warm = parts(prompts, args.requests or max(2 * users, 9), args.repeats, users)
            with ExitStack() as level:
                peers: dict[str, Peer] = {name: one.ready(users) for name, one in own.items()}
                peers |= others(args, worker, users, max_len)
                for peer in peers.values():
                    level.enter_context(peer).serve(warm, WARM_TOKENS)
                rows.append(row(users, compare(peers, repeats, args.max_tokens, args.natural_ends, args.seed)))
            print(json.dumps(rows[-1]), flush=True)
            if args.json:
                settings = {name: str(value) for name, value in vars(args).items()}
                report = {"machine": machine(), "settings": settings, "rows": rows}
                args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(rows))


def mix(sets: Sequence[PromptSet], codec: TextCodec, longest: int, seed: int) -> list[Sequence[int]]:
    """First turns as chats, sets in turn, each in a random order."""
    shuffled = [
        replace(one, prompts=tuple(random.Random(f"{seed} {one.name}").sample(one.prompts, len(one.prompts))))
        for one in sets
    ]
    return encoded(codec, shuffled, longest)


def parts(
    prompts: Sequence[Sequence[int]], requests: int, repeats: int, users: int
) -> tuple[list[Sequence[Sequence[int]]], Sequence[Sequence[int]]]:
    """Prompts of each repeat, and as many as there are users for the warm-up, none of them twice."""
    needed = repeats * requests + users
    if len(prompts) < needed:
        raise SystemExit(f"{len(prompts)} prompts are too few for {repeats} repeats of {requests} and a warm-up")
    return [prompts[i * requests : (i + 1) * requests] for i in range(repeats)], prompts[needed - users : needed]


def row(users: int, runs: Mapping[str, Sequence[Served]]) -> dict[str, Any]:
    """The figures of one level."""
    speeds = {name: [served.speed for served in own] for name, own in runs.items()}
    return {
        "concurrency": users,
        "requests": len(runs[OURS][0].answers),
        "engines": {name: {"tokens_per_second": median(own), "per_repeat": own} for name, own in speeds.items()},
        "over": ratios(runs),
        "same": same(runs),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """All levels in Markdown: output tokens/s of each engine, and how many times its speed the first engine has."""
    names = list(dict.fromkeys(name for one in rows for name in one["engines"]))
    lines = ["| engine | " + " | ".join(f"{one['concurrency']}" for one in rows) + " |"]
    lines.append("| --- |" + " --- |" * len(rows))
    lines += [f"| {name} | " + " | ".join(cell(one, name) for one in rows) + " |" for name in names]
    return "\n".join(lines)


def cell(one: Mapping[str, Any], name: str) -> str:
    """One engine at one level."""
    if name not in one["engines"]:
        return "-"
    speed = f"{one['engines'][name]['tokens_per_second']:.1f}"
    if name not in one["over"]:
        return speed
    middle, least, most = one["over"][name]
    return f"{speed} ({middle:.2f}x, {least:.2f} to {most:.2f})"


def check_template(args: argparse.Namespace, codec: TextCodec) -> None:
    """RuntimeError unless transformers, and peers with it, make the same token ids of every first turn."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(args.model or converted_directory())
    for one in read_prompt_sets(args.sets):
        for prompt in one.prompts:
            chat = user_turn(prompt.turns[0])
            plain = [{"role": message.role, "content": message.content} for message in chat]
            ids = theirs.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
            if list(ids) != list(codec.encode_chat(chat)):
                raise RuntimeError(f"{prompt.id}: transformers makes other tokens of the chat than this engine")


def others(args: argparse.Namespace, worker: Worker | None, users: int, max_len: int) -> dict[str, Peer]:
    """The peers that the command line names."""
    peers: dict[str, Peer] = {}
    if worker is not None:
        peers["vllm"] = worker.at(users)
    if args.transformers and users == 1:
        peers["transformers"] = Transformers(args.model or converted_directory())
    if args.llama_server:  # the last: nothing else can fail once its process runs
        peers["llama.cpp"] = LlamaServer(args.llama_server, args.gguf or wheel_file(), users, max_len)
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
    parser.add_argument("--natural-ends", action="store_true", help="answers end where the model ends them")
    parser.add_argument("--arm", nargs="+", default=["lagged"], help="how this engine runs (see `dspark bench --help`)")
    parser.add_argument("--kernel", nargs="+", default=["auto"], choices=get_args(KernelName), help="of the target")
    parser.add_argument("--without-lookup", action="store_true", help="do not copy where the text repeats itself")
    parser.add_argument("--drafter", type=Path, help="drafter directory (default: the shipped one)")
    parser.add_argument("--vllm-python", type=Path, help="interpreter of an environment with vLLM")
    parser.add_argument("--vllm-log", type=Path, help="what vLLM says goes here")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server")
    parser.add_argument("--transformers", action="store_true", help="transformers' generate, at one user")
    parser.add_argument("--model", type=Path, help="Hugging Face directory for peers (default: the embedded target's)")
    parser.add_argument("--gguf", type=Path, help="model of llama.cpp (default: the embedded target's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
