"""Everything that must be seen on a GPU before the engine is trusted there, in one run of less than eight minutes.

Parity with the CPU in float32 and bfloat16; losslessness of sampled texts by a chi-square test; tokens a second of
plain decoding, of all gamma drafts and of the lagged scheduler at 1, 8 and 64 requests; with `--graphs` captured pieces
of a step beside the same pieces run one kernel after another.

    python benchmarks/gpu_check.py --json docs/results/gpu_check.json [--graphs]

Each part is written when it is done. The same command goes on where an earlier one ended, on the same device and
versions; no part begins when `--minutes` are over. `--device cpu --tiny` runs the same code on random models.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from scipy.stats import chisquare
from torch import Tensor

from benchmarks.gpu_subjects import Subject, open_subject
from dspark import EngineOptions, SamplingParams, SchedulerConfig
from dspark.core.sampling import probabilities
from dspark.engine.core import EngineCore
from dspark.engine.profile_plan import served_start_plan
from dspark.engine.profiling import profile_rounds, step_seconds
from dspark.engine.result import GenerationResult
from dspark.engine.step_graphs import StepGraphs, greedy_drafting, verification
from dspark.engine.strategy import Strategy
from dspark.nn.device import clock_of, device_name, parse_device
from dspark.nn.paged_attention import choose_attention
from dspark.nn.pages import PagedCache, PageTable, pages_for
from dspark.nn.ragged_batch import RaggedBatch, Room
from dspark.scheduling.cost_table import CostTable
from dspark.version import __version__

Result = dict[str, Any]

COUNTS = ((33, 1, 17), (1, 5, 3), (4, 1, 1))
"""Rows of three requests in three forwards: chunks of prompts, verifications and single tokens side by side."""

TOLERANCES = {"fp32": (1e-3, 0.99), "bf16": (0.1, 0.85)}
"""Largest error relative to the largest number, and least share of rows whose likeliest token is the same."""

KEPT, LENGTH = 4, 3
"""Of each law the likeliest 4 tokens, and 3 tokens of text: 64 texts, whose exact law takes 21 rows."""

SIGNIFICANCE = 1e-4
LEAST_EXPECTED = 5.0

ARMS = {
    "plain": ("none", SchedulerConfig("fixed", park=False)),
    "fixed": ("auto", SchedulerConfig("fixed", park=False)),
    "lagged": ("auto", SchedulerConfig("lagged")),
}


def main() -> None:
    """Run what is not done yet, write it down, and exit with 1 if a check failed."""
    args = arguments()
    device = parse_device(args.device)
    head = environment(args, device)
    results = earlier(args.json, head)
    subjects = {dtype: open_subject(args.target, args.drafter, dtype, device, args.tiny) for dtype in TOLERANCES}
    began = time.monotonic()
    for name, part in parts(args, subjects).items():
        if name in results["parts"]:
            continue
        if time.monotonic() - began > 60 * args.minutes:
            print(f"{name}: no time left; run the same command again", file=sys.stderr)
            break
        before = time.monotonic()
        results["parts"][name] = part() | {"seconds": round(time.monotonic() - before, 1)}
        print(f"{name}: {json.dumps(results['parts'][name])}", file=sys.stderr)
        save(args.json, results)
    print(json.dumps(results, indent=1))
    sys.exit(0 if all(part.get("ok", True) for part in results["parts"].values()) else 1)


def parts(args: argparse.Namespace, subjects: dict[str, Subject]) -> dict[str, Callable[[], Result]]:
    """What there is to do, in order."""
    serving = subjects["bf16"]
    todo: dict[str, Callable[[], Result]] = {
        f"parity {name}": lambda name=name: parity(subjects[name], *TOLERANCES[name])  # type: ignore[misc]
        for name in subjects
    }
    todo["losslessness"] = lambda: losslessness(serving, args.samples)
    if args.graphs:
        todo["graphs"] = lambda: graphs(serving)
    todo["cost"] = lambda: cost(serving, args.concurrencies[-1])
    for requests in args.concurrencies:
        todo[f"arms at {requests}"] = lambda n=requests: arms(serving, n, args.tokens, earlier_cost(args.json))  # type: ignore[misc]
    return todo


def environment(args: argparse.Namespace, device: torch.device) -> Result:
    """What the results hold for."""
    attention = choose_attention(device, torch.bfloat16, 64)
    return {
        "device": device_name(device) or str(device),
        "capability": list(torch.cuda.get_device_capability(device)) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "dspark": __version__,
        "attention": attention.__name__,
        "target": "tiny" if args.tiny else args.target,
        "tokens": args.tokens,
        "samples": args.samples,
    }


def parity(subject: Subject, error: float, agreement: float) -> Result:
    """Ragged forwards and drafts of the device beside those of the CPU in float32, on the same tokens and features."""
    found, expected = (forwards(subject, on_device) for on_device in (True, False))
    errors = {name: relative(found[name], expected[name]) for name in expected}
    agreed = {
        name: float((found[name].argmax(-1).cpu() == expected[name].argmax(-1)).float().mean())
        for name in ("logits", "draft logits")
    }
    ok = max(errors.values()) <= error and min(agreed.values()) >= agreement
    return {"ok": ok, "relative errors": errors, "same likeliest token": agreed}


def forwards(subject: Subject, on_device: bool) -> dict[str, Tensor]:
    """States, features and logits of `COUNTS`, then blocks of all three requests, slot by slot."""
    target = subject.target if on_device else subject.reference
    drafter = subject.drafter if on_device else subject.reference_drafter
    totals, taps, gamma = (
        [sum(own) for own in zip(*COUNTS, strict=True)],
        drafter.info.target_layer_ids,
        drafter.info.gamma,
    )
    caches, reference = (seated(model, [total + gamma for total in totals]) for model in (target, subject.reference))
    contexts, outputs = seated(drafter, [total + gamma for total in totals]), []
    for step, counts in enumerate(COUNTS):
        tokens = subject.ids(sum(counts), step)
        outputs.append(target.forward_ragged(tokens, caches, counts, taps))
        shown = subject.reference.forward_ragged(tokens, reference, counts, taps).features
        drafter.extend_ragged(shown.to(drafter.device), contexts, counts)
    hidden = torch.cat([output.last_hidden for output in outputs])
    blocks, previous, logits = drafter.begin_each([1, 2, 3], contexts, gamma), torch.tensor([1, 2, 3]), []
    for slot in range(gamma):
        logits.append(blocks.step(previous)[0])
        previous = subject.ids(3, 100 + slot)
    features = torch.cat([output.features for output in outputs])
    return {
        "states": hidden, "features": features, "logits": target.logits(hidden),
        "blocks": blocks.hidden, "draft logits": torch.stack(logits, dim=1),
    }  # fmt: skip


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest number; those that are masked must be the same."""
    found, expected = found.float().cpu(), expected.float()
    masked = expected.isinf()
    if not torch.equal(found.isinf(), masked):
        return float("inf")
    difference = (found - expected)[~masked].abs().max()
    return float(difference / expected[~masked].abs().max())


def losslessness(subject: Subject, samples: int) -> Result:
    """Chi-square test of the texts of many seeds, drafted and verified together, against their exact law."""
    params = [SamplingParams(1.0, top_k=KEPT, seed=seed, max_tokens=LENGTH, ignore_eos=True) for seed in range(samples)]
    core = engine(subject, "auto", SchedulerConfig("fixed", park=False), 64)
    laws = [(exact_law(subject, prompt, params[0]), prompt) for prompt in subject.prompts]
    law, prompt = max(laws, key=lambda each: entropy(each[0]))
    results, accepted = run(core, [(prompt, own) for own in params])
    seen = Counter(result.token_ids for result in results)
    common = [text for text, chance in law.items() if chance * samples >= LEAST_EXPECTED]
    rest = 1 - sum(law[text] for text in common)
    observed = [seen[text] for text in common] + [samples - sum(seen[text] for text in common)]
    expected = [law[text] * samples for text in common] + [rest * samples]
    if expected[-1] < LEAST_EXPECTED:  # a small rest joins the last of the others
        observed[-2:], expected[-2:] = [sum(observed[-2:])], [sum(expected[-2:])]
    p_value = float(chisquare(observed, expected).pvalue)
    impossible = sum(count for text, count in seen.items() if text not in law)
    return {
        "ok": p_value > SIGNIFICANCE and impossible <= samples // 200,  # a tie of the 4th token may break either way
        "p_value": p_value, "cells": len(observed), "samples": samples, "accepted_drafts": accepted,
        "outside_law": impossible,
    }  # fmt: skip


def exact_law(subject: Subject, prompt: Sequence[int], params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Chance of every text of `LENGTH` tokens, by the device's own forwards."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        texts = list(law)
        rows = [[*prompt, *text] for text in texts]
        caches = seated(subject.target, [len(row) for row in rows])
        tokens = torch.tensor([token for row in rows for token in row])
        hidden = subject.target.forward_ragged(tokens, caches, [len(row) for row in rows]).last_hidden
        ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1
        chances = probabilities(subject.target.logits(hidden[ends.to(hidden.device)]).double().cpu(), params)
        law = {
            (*text, int(token)): law[text] * float(row[token])
            for text, row in zip(texts, chances, strict=True)
            for token in row.nonzero()[:, 0]
        }
    return law


def entropy(law: dict[tuple[int, ...], float]) -> float:
    """Nats: a law of few likely texts tests little."""
    return -sum(chance * math.log(chance) for chance in law.values())


def cost(subject: Subject, requests: int) -> Result:
    """What rounds cost, as an engine's first start measures it."""
    info, gamma, clock = subject.target.info, subject.drafter.info.gamma, clock_of(subject.target.device)
    plan = served_start_plan(info, gamma, step_seconds(subject.target, clock), requests)
    if plan is None:
        return {"table": None}
    return {"table": profile_rounds(subject.target, subject.drafter, plan, Random(0), clock).table.to_json()}


def earlier_cost(path: Path) -> CostTable | None:
    """The cost table that `cost` wrote."""
    table = json.loads(path.read_text(encoding="utf-8"))["parts"]["cost"]["table"]
    return None if table is None else CostTable.from_json(table)


def arms(subject: Subject, requests: int, tokens: int, table: CostTable | None) -> Result:
    """Tokens a second of every arm with so many requests at once, prompts included; greedy texts."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    asked = [(subject.prompts[i % len(subject.prompts)], params) for i in range(requests)]
    clock, rows, texts = clock_of(subject.target.device), {}, {}
    for name, (strategy, scheduler) in ARMS.items():
        core = engine(subject, strategy, scheduler, requests, table)
        run(core, asked[: max(requests // 8, 1)])  # warms up
        before = clock()
        results, accepted = run(core, asked)
        seconds = clock() - before
        total = sum(len(result.token_ids) for result in results)
        texts[name] = [result.token_ids for result in results]
        rows[name] = {"tokens_per_second": round(total / seconds, 1), "accepted_drafts": accepted}
    same = {name: sum(map(tuple.__eq__, texts[name], texts["plain"])) / requests for name in ARMS}
    return {"arms": rows, "same texts as plain": same}


def graphs(subject: Subject, rows: Sequence[int] = (8, 64), repeats: int = 20) -> Result:
    """Captured verification and drafting: largest difference to the same pieces run eagerly, milliseconds of both."""
    captured, target, drafter = StepGraphs(), subject.target, subject.drafter
    clock, gamma, outcome = clock_of(target.device), drafter.info.gamma, {}
    for tier in rows:
        caches, contexts = seated(target, [40 + tier]), seated(drafter, [40 + gamma] * tier)
        target.forward_ragged(subject.ids(33, tier), caches, [33])
        for cache in contexts:
            cache.length = 33
        verify = RaggedBatch.of(caches, [tier], target.device, Room(4, caches[0].table.count))
        draft = RaggedBatch.of(contexts, [gamma] * tier, target.device, Room(tier, contexts[0].table.count))
        ids, anchors = (subject.ids(tier, seed).to(target.device) for seed in (1, 2))
        pieces = {
            "verify": (verification(target, caches[0].pool, verify, drafter.info.target_layer_ids), ids, verify.data),
            "draft": (greedy_drafting(drafter, contexts[0].pool, draft), anchors, draft.data),
        }
        for name, (work, *inputs) in pieces.items():
            eager, replayed = work(*inputs)[0], captured.run((name, tier), work, *inputs)[0]
            outcome[f"{name} {tier}"] = {
                "difference": float((eager.float() - replayed.float()).abs().max()),
                "eager_ms": timed(lambda w=work, i=inputs: w(*i), clock, repeats),  # type: ignore[misc]
                "graph_ms": timed(lambda k=(name, tier), w=work, i=inputs: captured.run(k, w, *i), clock, repeats),  # type: ignore[misc]
            }
    return {"ok": all(piece["difference"] < 0.1 for piece in outcome.values()), "pieces": outcome}


def timed(work: Callable[[], object], clock: Callable[[], float], repeats: int) -> float:
    """Milliseconds of one call among many."""
    work()
    before = clock()
    for _ in range(repeats):
        work()
    return round(1000 * (clock() - before) / repeats, 3)


def engine(
    subject: Subject, strategy: str, scheduler: SchedulerConfig, requests: int, table: CostTable | None = None
) -> EngineCore:
    """An engine for so many requests, in which nothing is copied and no prefix is shared."""
    gamma, longest = subject.drafter.info.gamma, max(map(len, subject.prompts)) + 160
    options = EngineOptions(
        max_requests=requests,
        max_batched_tokens=max(512, (gamma + 1) * requests + 256),
        pages=requests * pages_for(min(longest, subject.target.info.max_positions) + gamma + 1),
        prefix_caching=False,
        scheduler=scheduler,
        strategy=strategy,
        lookup=None,
    )
    return EngineCore(subject.target, [Strategy("dspark", subject.drafter)], options, table)


def run(core: EngineCore, asked: Sequence[tuple[Sequence[int], SamplingParams]]) -> tuple[list[GenerationResult], int]:
    """Results in order, and how many drafts were accepted."""
    numbers, results, accepted = [core.add(prompt, params) for prompt, params in asked], {}, 0
    while not core.idle:
        results |= {event.request_id: event.result for event in core.step() if event.result is not None}
        accepted += core.last.accepted if core.last is not None else 0
    return [results[number] for number in numbers], accepted


def seated(model: Any, lengths: Sequence[int]) -> list[PagedCache]:
    """Caches of a target or a drafter with room for so many positions, in one pool, their pages in turn."""
    needed = [pages_for(length) for length in lengths]
    pool, caches, first = model.new_pages(sum(needed)), [], 0
    for pages in needed:
        table = PageTable(pages)
        table.extend(range(first, first + pages))
        caches.append(PagedCache(pool, table))
        first += pages
    return caches


def earlier(path: Path, head: Result) -> Result:
    """What an earlier run of the same things wrote."""
    try:
        found: Result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    return found if found.get("environment") == head else {"environment": head, "parts": {}}


def save(path: Path, results: Result) -> None:
    """Write all or nothing."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", help="directory; default: the one shipped for the target")
    parser.add_argument("--tiny", action="store_true", help="random small models instead")
    parser.add_argument("--graphs", action="store_true", help="capture pieces of a step, too; needs a GPU")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=128, help="of each text that is timed; at most 128")
    parser.add_argument("--concurrencies", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
