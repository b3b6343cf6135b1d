"""Accepted length of drafters over prompt sets under several samplings, as JSON and as a table in the README.

The target writes its texts once, and every drafter is replayed along them (`dspark.evaluation.replay`): the law of the
loop's rounds, at T = 0 the rounds themselves, at a fraction of the cost. `--loop` runs the loop instead. Texts are kept
under --texts, and every prompt is journalled under --work, so an interrupted run goes on where it stopped.

    python -m benchmarks.tau_table PROMPTS --drafter DSpark=src/dspark/drafters/weights/smollm2-135m \
        --drafter DFlash=runs/dflash/drafter --prompts 24 --work runs/tau

`--temperature T`, or `T,P` for top-p P, may be given again; without it: 0, 1 and what the model's authors advise,
0.2,0.9. The JSON also has the first drafter's mean over each other one's, with intervals by bootstrap over pairs of
prompts.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.markers import rewrite
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.registry import load_drafter
from dspark.drafters.shipped import NO_DRAFTER
from dspark.engine.models import Models, open_models
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.evaluation.decode import PromptDecoder
from dspark.evaluation.evaluate import EvalReport, Journal, evaluate
from dspark.evaluation.prompts import PromptSet, read_prompt_sets
from dspark.evaluation.quotient import Quotient
from dspark.evaluation.replay import Replay
from dspark.evaluation.target_text import TextWriter
from dspark.evaluation.text_store import TextStore
from dspark.evaluation.write_texts import write_texts
from dspark.targets.native import NativeTarget
from dspark.types import SamplingParams

TARGET = "smollm2-135m"
OVERHANG = 8
"""Tokens that a text goes on beyond its limit: the longest block that can be replayed."""
GREEDY, SAMPLED, ADVISED = (0.0, 1.0), (1.0, 1.0), (0.2, 0.9)
"""(temperature, top-p); the last is what the authors of SmolLM2-Instruct sample with in their examples."""


@dataclass(frozen=True)
class Arm:
    """A drafter with the name of its rows and the hash of its weights."""

    name: str
    drafter: DrafterModule
    weights_hash: str

    @classmethod
    def open(cls, name: str, directory: Path, models: Models, loop: bool) -> "Arm":
        """Packed for decoding, or plain for the whole passes of a replay."""
        weights_hash = sha256((directory / "model.safetensors").read_bytes()).hexdigest()
        return cls(name, load_drafter(directory, models.target, "auto" if loop else None), weights_hash)


def main() -> None:
    """Evaluate, write the JSON report, and put the table where the README keeps it."""
    args = arguments()
    sets = read_prompt_sets(args.sets, args.prompts)
    models = open_models(TARGET, NO_DRAFTER)
    arms = [Arm.open(name, directory, models, args.loop) for name, directory in args.drafter]
    all_params = [SamplingParams(temperature=t, top_p=p, max_tokens=args.max_tokens) for t, p in args.temperature]
    store = None if args.loop else written(args, models, sets, arms, all_params)
    reports = {
        (arm.name, params): measured(args, models, store, arm, params, sets)
        for arm, params in product(arms, all_params)
    }
    rows = [row(name, params, report) for (name, params), report in reports.items()]
    table = markdown(rows)
    print(table)
    tables = {"settings": settings(args), "rows": rows, "quotients": quotients(reports)}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(tables, indent=1) + "\n")
    if args.readme is not None:
        rewrite(args.readme, "tau table", table)


def row(name: str, params: SamplingParams, report: EvalReport) -> dict[str, Any]:
    """One drafter under one sampling."""
    return {"drafter": name, "temperature": params.temperature, "top_p": params.top_p, **report.as_json()}


def quotients(reports: dict[tuple[str, SamplingParams], EvalReport]) -> list[dict[str, Any]]:
    """The first drafter's mean tau over each other one's, sampling by sampling."""
    first, *others = dict.fromkeys(name for name, _ in reports)
    found = []
    for other, params in ((name, params) for name, params in reports if name in others):
        quotient = Quotient.of(reports[first, params], reports[other, params])
        law = {"temperature": params.temperature, "top_p": params.top_p}
        found.append({"drafter": first, "over": other, **law, "quotient": quotient.value, "ci95": quotient.ci95})
    return found


def written(
    args: argparse.Namespace,
    models: Models,
    sets: Sequence[PromptSet],
    arms: Sequence[Arm],
    all_params: Sequence[SamplingParams],
) -> TextStore:
    """All texts of the evaluation, with the features that the first drafter reads."""
    assert isinstance(models.target, NativeTarget), "the embedded target is native"
    writer = TextWriter(models.target, arms[0].drafter.shape.target_layer_ids, OVERHANG)
    store = TextStore(args.texts, writer)
    write_texts(store, models.codec, sets, all_params, args.seed, lambda text: print("+", end="", flush=True))
    return store


def measured(
    args: argparse.Namespace,
    models: Models,
    store: TextStore | None,
    arm: Arm,
    params: SamplingParams,
    sets: Sequence[PromptSet],
) -> EvalReport:
    """One drafter under one sampling."""
    options = DecodeOptions(max_draft_tokens=args.max_draft_tokens)
    loop = (
        ReferenceLoop(models.target, arm.drafter, options)
        if store is None
        else Replay(store, arm.drafter, options, args.simulations)
    )
    decode = PromptDecoder(loop, models.codec, params)
    how = method(args)
    decides = decode.settings() | how | {"drafter_hash": arm.weights_hash}
    journal = Journal(args.work / journal_name(arm, params, how["method"]), decides)
    report = evaluate(decode, sets, args.seed, journal, lambda one, outcome: print(".", end="", flush=True))
    print(f" {arm.name} T={sampling(params.temperature, params.top_p)}: mean tau {report.mean_tau:.3f}")
    return report


def journal_name(arm: Arm, params: SamplingParams, method: str) -> str:
    """File of the prompts that are done."""
    filtered = "" if params.top_p == 1 else f"-top-p-{params.top_p:g}"
    return f"{arm.name}-{arm.weights_hash[:8]}-{params.temperature:g}{filtered}-{method}.jsonl"


def method(args: argparse.Namespace) -> dict[str, Any]:
    """How rounds come about. A replay tallies `simulations` decodings of every prompt at temperatures above 0."""
    return {"method": "loop"} if args.loop else {"method": "replay", "simulations": args.simulations}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the report was made with."""
    chosen = {name: getattr(args, name) for name in ("prompts", "max_tokens", "max_draft_tokens", "seed")}
    return chosen | method(args) | {"torch": torch.__version__}


def markdown(rows: list[dict[str, Any]]) -> str:
    """One row per drafter and sampling: tau of each set with its interval, and the mean."""
    names = list(rows[0]["sets"])
    header = ["drafter", "T", *names, "mean"]
    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    for row in rows:
        cells = [interval(one["tau"], one["tau_ci95"]) for one in row["sets"].values()]
        mean = f"**{interval(row['mean_tau'], row['mean_tau_ci95'])}**"
        lines.append(" | ".join([row["drafter"], sampling(row["temperature"], row["top_p"]), *cells, mean]))
    return "\n".join(f"| {line} |" for line in lines)


def interval(value: float, bounds: list[float]) -> str:
    """tau with half the width of its 95 % interval."""
    return f"{value:.2f} ± {(bounds[1] - bounds[0]) / 2:.2f}"


def sampling(temperature: float, top_p: float) -> str:
    """As the table says it."""
    return f"{temperature:g}" + ("" if top_p == 1 else f", top-p {top_p:g}")


def temperature_and_top_p(text: str) -> tuple[float, float]:
    """T or T,P."""
    temperature, _, top_p = text.partition(",")
    return float(temperature), float(top_p or 1)


def named_directory(text: str) -> tuple[str, Path]:
    """NAME=DIR."""
    name, _, directory = text.partition("=")
    return name, Path(directory)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="JSONL prompt sets, or a directory of them")
    parser.add_argument("--drafter", action="append", type=named_directory, required=True, metavar="NAME=DIR")
    parser.add_argument(
        "--temperature",
        action="append",
        type=temperature_and_top_p,
        metavar="T[,TOP_P]",
        help="default: 0, 1 and 0.2,0.9",
    )
    parser.add_argument("--prompts", type=int, default=24, help="prompts of each set")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-draft-tokens", type=int, help="cap below the drafter's gamma")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loop", action="store_true", help="decode every prompt with the loop instead of replaying")
    parser.add_argument("--simulations", type=int, default=16, help="replayed decodings of a prompt at T > 0")
    parser.add_argument("--texts", type=Path, default=Path("runs/texts"), help="the target's texts go here")
    parser.add_argument("--work", type=Path, default=Path("runs/tau"), help="journals go here")
    parser.add_argument("--json", type=Path, default=Path("docs/results/tau.json"))
    parser.add_argument("--readme", type=Path, help="rewrite the table between the markers of this file")
    args = parser.parse_args()
    args.temperature = args.temperature or [GREEDY, SAMPLED, ADVISED]
    return args


if __name__ == "__main__":
    main()
