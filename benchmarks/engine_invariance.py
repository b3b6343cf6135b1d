"""Accepted length where an engine may lose it: in batches, behind shared prefixes, chunks, preemption, long contexts.

Every case decodes the same prompts with all gamma drafts of the shipped drafter and is compared with the reference
loop, which has a fresh cache for one request at a time: tau by prompt, its ratio, how many texts are the same.

    python benchmarks/engine_invariance.py PROMPTS --prompts 6 --json docs/results/engine_invariance.json
"""

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dspark import LLM, EngineOptions, SamplingParams, SchedulerConfig
from dspark.core.tau import RoundTally
from dspark.data.chat import user_turn
from dspark.data.text import TextCodec
from dspark.doctor.machine import processor
from dspark.engine.models import Models, open_models
from dspark.engine.reference import ReferenceLoop
from dspark.engine.result import GenerationResult
from dspark.evaluation.prompts import read_prompt_set

Row = dict[str, Any]
FULL = SchedulerConfig("fixed", park=False)


@dataclass(frozen=True, slots=True)
class Case:
    """Options of the engine, how many requests are sent at a time, and how often."""

    name: str
    options: EngineOptions
    together: int
    again: int = 1


def options(requests: int, chunk: int = 256, pages: int | None = None) -> EngineOptions:
    """Everything that is drafted is verified, nothing is copied."""
    rows = max(512, 8 * requests)
    return EngineOptions(requests, rows, chunk, pages, scheduler=FULL, lookup=None)


def main() -> None:
    """Run every case at both temperatures and print a table."""
    args = arguments()
    models = open_models("smollm2-135m")
    prompts = rendered(models.codec, args)
    longest = max(map(len, prompts)) + args.max_tokens + 32
    cases = [
        Case("one at a time", options(1), 1),
        Case("8 at a time", options(8), 8),
        Case("32 at a time", options(32), 32),
        Case("32, once more behind cached prefixes", options(32), 32, again=2),
        Case("32, prompts in chunks of 16", options(32, chunk=16), 32),
        Case("32, pages for a few (preempted)", options(32, pages=4 * -(-longest // 16)), 32),
    ]
    rows = [row for temperature in (0.0, 1.0) for row in compared(models, cases, prompts, temperature, args)]
    if args.long:
        rows += long_contexts(models, prompts, args)
    print(json.dumps(rows, indent=1) if args.json is None else table(rows))
    if args.json is not None:
        machine = {
            "processor": processor().model,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
        }
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def rendered(codec: TextCodec, args: argparse.Namespace) -> list[list[int]]:
    """Chats of all sets in turn."""
    sets = [read_prompt_set(path).prompts[: args.prompts] for path in sorted(args.sets.glob("*.jsonl"))]
    return [codec.encode_chat(user_turn(one.turns[0])) for turn in zip(*sets, strict=True) for one in turn]


def compared(
    models: Models,
    cases: Sequence[Case],
    prompts: Sequence[Sequence[int]],
    temperature: float,
    args: argparse.Namespace,
) -> list[Row]:
    """A row a case; the reference loop's first."""
    params = [SamplingParams(temperature, seed=i, max_tokens=args.max_tokens) for i in range(len(prompts))]
    loop = ReferenceLoop(models.target, models.drafter)
    alone = [loop.generate(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    rows = [entry("reference loop", temperature, alone, alone, 0)]
    for case in cases:
        llm = LLM(options=case.options)
        for _ in range(case.again):
            results, preempted = decode(llm, case.together, prompts, params)
        rows.append(entry(case.name, temperature, results, alone, preempted))
        print(rows[-1], flush=True)
    return rows


def long_contexts(models: Models, prompts: Sequence[Sequence[int]], args: argparse.Namespace) -> list[Row]:
    """Prompts joined until they fill `args.long` positions, greedy, four at a time in chunks."""
    joined = [token for prompt in prompts for token in prompt]
    starts = [i * len(joined) // args.long_prompts for i in range(args.long_prompts)]
    long = [(joined[first:] + joined * 9)[: args.long - args.max_tokens - 8] for first in starts]
    params = [SamplingParams(max_tokens=args.max_tokens, ignore_eos=True)] * len(long)
    loop = ReferenceLoop(models.target, models.drafter)
    alone = [loop.generate(prompt, own) for prompt, own in zip(long, params, strict=True)]
    llm = LLM(options=options(4, chunk=128))
    results, preempted = decode(llm, 4, long, params)
    rows = [entry(f"reference loop, {args.long} positions", 0.0, alone, alone, 0)]
    return [*rows, entry(f"4 at a time, {args.long} positions, chunks of 128", 0.0, results, alone, preempted)]


def decode(
    llm: LLM, together: int, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> tuple[list[GenerationResult], int]:
    """Results in order, with at most `together` requests on their way; and how often one was preempted."""
    core, left, numbers = llm.core, list(range(len(prompts)))[::-1], dict[int, int]()
    results: dict[int, GenerationResult] = {}
    preempted = 0
    while len(results) < len(prompts):
        while left and len(numbers) < together:
            index = left.pop()
            numbers[core.add(prompts[index], params[index])] = index
        for event in core.step():
            if event.result is not None:
                results[numbers.pop(event.request_id)] = event.result
        preempted += 0 if core.last is None else core.last.preempted
    return [results[index] for index in range(len(prompts))], preempted


def entry(
    name: str,
    temperature: float,
    results: Sequence[GenerationResult],
    alone: Sequence[GenerationResult],
    preempted: int,
) -> Row:
    """A row of the table."""
    tau, reference = (RoundTally.merged(one.tally for one in every).tau for every in (results, alone))
    same = sum(one.token_ids == other.token_ids for one, other in zip(results, alone, strict=True))
    return {
        "case": name,
        "temperature": temperature,
        "tau": tau,
        "ratio": tau / reference,
        "same_texts": same,
        "texts": len(results),
        "preempted": preempted,
    }


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = [
        "| case | T | tau | of the reference loop's | same texts | preempted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['case']} | {row['temperature']:g} | {row['tau']:.3f} | {row['ratio']:.3f} | {row['same_texts']} of "
        f"{row['texts']} | {row['preempted']} |"
        for row in rows
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, help="a directory of JSONL prompt sets")
    parser.add_argument("--prompts", type=int, default=6, help="prompts of each set")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--long", type=int, default=4096, help="positions of the long contexts; 0: none")
    parser.add_argument("--long-prompts", type=int, default=4)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
