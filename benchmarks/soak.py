"""Serves random arrivals, lengths and cancellations for minutes, and looks for leaks, lost requests and wrong answers.

Requests draw their prompt from a pool and a length and are greedy, so each answer must begin the target's own text of
that prompt, which is decoded plainly beforehand; a turn at a near-tie of the target is told from an error. A third of
the requests is cancelled on the way. Afterwards no page may be in use, and memory may not have grown with time.

    python benchmarks/soak.py PROMPTS --minutes 20 --json docs/results/soak.json
"""

import argparse
import json
import os
import platform
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import torch
from scipy.stats import linregress

from dspark import LLM, EngineOptions, SamplingParams
from dspark.data.chat import user_turn
from dspark.doctor.machine import processor
from dspark.engine.reference import ReferenceLoop
from dspark.evaluation.agreement import first_divergence
from dspark.evaluation.prompts import read_prompt_set

SAMPLE_SECONDS = 2.0
WARM_SHARE = 0.2
"""Of the run, before memory is looked at: buffers reach their largest sizes, the page cache fills."""


@dataclass(slots=True)
class Asked:
    """One request on its way."""

    prompt: int
    tokens: int
    cancel_at: float


@dataclass(slots=True)
class Soak:
    """What was seen."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    near_ties: int = 0
    tokens: int = 0
    preempted: int = 0
    memory: list[tuple[float, float]] = field(default_factory=list)


def main() -> None:
    """Decode the pool, soak, judge, print."""
    args = arguments()
    random = Random(args.seed)
    llm = LLM(options=EngineOptions(args.requests, pages=args.pages))
    llm.core.memory.claim()  # so that whatever grows from here on was not planned
    prompts = pool(llm, args)
    loop = ReferenceLoop(llm.core.target)
    params = SamplingParams(max_tokens=args.max_tokens, ignore_eos=True)
    texts = [loop.generate(prompt, params).token_ids for prompt in prompts]
    soak = run(llm, prompts, texts, random, args)
    report = summary(soak, llm, args)
    print(json.dumps(report, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def pool(llm: LLM, args: argparse.Namespace) -> list[list[int]]:
    """Rendered prompts, a few of each set."""
    sets = [read_prompt_set(path).prompts[: args.pool] for path in sorted(args.sets.glob("*.jsonl"))]
    turns = [prompt.turns[0] for prompts in sets for prompt in prompts]
    rendered = [llm.codec.encode_chat(user_turn(turn)) for turn in turns]
    return [prompt for prompt in rendered if len(prompt) <= args.longest_prompt]


def run(
    llm: LLM, prompts: list[list[int]], texts: list[tuple[int, ...]], random: Random, args: argparse.Namespace
) -> Soak:
    """Step until the time is over and nobody is left."""
    core, soak, asked = llm.core, Soak(), dict[int, Asked]()
    start = sampled = arrival = time.perf_counter()
    end = start + 60 * args.minutes
    while (now := time.perf_counter()) < end or not core.idle:
        while arrival <= now < end:
            chosen = random.randrange(len(prompts))
            tokens = random.randint(1, args.max_tokens)
            cancel = now + random.expovariate(1 / 4.0) if random.random() < 1 / 3 else np.inf
            number = core.add(prompts[chosen], SamplingParams(max_tokens=tokens, ignore_eos=True))
            asked[number] = Asked(chosen, tokens, cancel)
            arrival += random.expovariate(args.rate)
        for number in [number for number, one in asked.items() if one.cancel_at <= now]:
            core.abort(number)
        for event in core.step():
            if event.result is not None:
                judge(
                    soak, llm, prompts, texts, asked.pop(event.request_id), event.result.token_ids, event.finish_reason
                )
        soak.preempted += core.last.preempted if core.last is not None else 0
        if now - sampled >= SAMPLE_SECONDS:
            sampled = now
            soak.memory.append((now - start, resident_mib()))
            if len(soak.memory) % 30 == 0:
                print(f"{(now - start) / 60:.1f} min, {dict(soak.ends)}, {soak.memory[-1][1]:.0f} MiB", flush=True)
        if core.idle and arrival > now:
            time.sleep(min(arrival - now, 0.05))
    soak.ends["lost"] = len(asked)
    return soak


def judge(
    soak: Soak,
    llm: LLM,
    prompts: list[list[int]],
    texts: list[tuple[int, ...]],
    one: Asked,
    token_ids: tuple[int, ...],
    reason: str | None,
) -> None:
    """Count an answer, and compare it with the target's own text."""
    soak.ends[str(reason)] += 1
    soak.tokens += len(token_ids)
    expected = texts[one.prompt][: len(token_ids)]
    if reason == "length" and len(token_ids) != one.tokens:
        soak.wrong.append(f"{len(token_ids)} tokens instead of {one.tokens}")
    if token_ids != expected:
        turn = first_divergence(llm.core.target, prompts[one.prompt], expected, token_ids)
        if turn is not None and turn.explained:
            soak.near_ties += 1
        else:
            soak.wrong.append(f"prompt {one.prompt}: {turn}")


def summary(soak: Soak, llm: LLM, args: argparse.Namespace) -> dict[str, object]:
    """The verdict in numbers; slope and its 95 % interval in MiB a minute."""
    settled = soak.memory[int(WARM_SHARE * len(soak.memory)) :]
    minutes, mib = np.array([t for t, _ in settled]) / 60, np.array([m for _, m in settled])
    line = linregress(minutes, mib)
    manager = llm.core.memory.manager
    return {
        "minutes": args.minutes,
        "ends": dict(soak.ends),
        "tokens": soak.tokens,
        "wrong": soak.wrong,
        "near_ties": soak.near_ties,
        "preempted": soak.preempted,
        "pages_used_at_the_end": manager.used,
        "pages": manager.pages,
        "mib_settled": [float(mib.min()), float(mib.max())],
        "mib_per_minute": line.slope,
        "mib_per_minute_standard_error": line.stderr,
        "rate": args.rate,
        "seed": args.seed,
        "machine": {
            "processor": processor().model,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
        },
    }


def resident_mib() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, help="a directory of JSONL prompt sets")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second, on average")
    parser.add_argument("--requests", type=int, default=32, help="most that run at once")
    parser.add_argument("--pages", type=int, default=512, help="few enough that requests are preempted")
    parser.add_argument("--pool", type=int, default=12, help="prompts of each set")
    parser.add_argument("--longest-prompt", type=int, default=600, help="tokens")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
