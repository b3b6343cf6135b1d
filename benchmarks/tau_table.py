"""Accepted length of drafters over prompt sets at several temperatures, as JSON and as a table in the README.

The target writes its texts once, and every drafter is replayed along them (`dspark.evaluation.replay`): the law of the
loop's rounds, at T = 0 the rounds themselves, at a fraction of the cost. `--loop` runs the loop instead. Texts are kept
under --texts, and every prompt is journalled under --work, so an interrupted run goes on where it stopped.

    python benchmarks/tau_table.py PROMPTS --drafter DSpark=src/dspark/drafters/weights/smollm2-135m \
        --drafter DFlash=runs/dflash/drafter --prompts 24 --work runs/tau
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

from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.registry import load_drafter
from dspark.drafters.shipped import NO_DRAFTER
from dspark.engine.models import Models, open_models
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.evaluation.decode import PromptDecoder
from dspark.evaluation.evaluate import EvalReport, Journal, evaluate
from dspark.evaluation.prompts import PromptSet, read_prompt_sets
from dspark.evaluation.replay import Replay
from dspark.evaluation.target_text import TextWriter
from dspark.evaluation.text_store import TextStore
from dspark.evaluation.write_texts import write_texts
from dspark.targets.native import NativeTarget
from dspark.types import SamplingParams

TARGET = "smollm2-135m"
OVERHANG = 8
"""Tokens that a text goes on beyond its limit: the longest block that can be replayed."""
BEGIN, END = "<!-- tau table: begin -->", "<!-- tau table: end -->"


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
    all_params = [SamplingParams(temperature=t, max_tokens=args.max_tokens) for t in args.temperature]
    store = None if args.loop else written(args, models, sets, arms, all_params)
    rows: list[dict[str, Any]] = []
    for arm, params in product(arms, all_params):
        report = measured(args, models, store, arm, params, sets)
        rows.append({"drafter": arm.name, "temperature": params.temperature, **report.as_json()})
        print(f" {arm.name} T={params.temperature:g}: mean tau {report.mean_tau:.3f}")
    table = markdown(rows)
    print(table)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"settings": settings(args), "rows": rows}, indent=1) + "\n")
    if args.readme is not None:
        args.readme.write_text(replace_between(args.readme.read_text(), table))


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
    """One drafter at one temperature."""
    options = DecodeOptions(max_draft_tokens=args.max_draft_tokens)
    loop = (
        ReferenceLoop(models.target, arm.drafter, options)
        if store is None
        else Replay(store, arm.drafter, options, args.simulations)
    )
    decode = PromptDecoder(loop, models.codec, params)
    how = method(args)
    decides = decode.settings() | how | {"drafter_hash": arm.weights_hash}
    name = f"{arm.name}-{arm.weights_hash[:8]}-{params.temperature:g}-{how['method']}.jsonl"
    journal = Journal(args.work / name, decides)
    return evaluate(decode, sets, args.seed, journal, lambda one, outcome: print(".", end="", flush=True))


def method(args: argparse.Namespace) -> dict[str, Any]:
    """How rounds come about. A replay tallies `simulations` decodings of every prompt at temperatures above 0."""
    return {"method": "loop"} if args.loop else {"method": "replay", "simulations": args.simulations}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the report was made with."""
    chosen = {name: getattr(args, name) for name in ("prompts", "max_tokens", "max_draft_tokens", "seed")}
    return chosen | method(args) | {"torch": torch.__version__}


def markdown(rows: list[dict[str, Any]]) -> str:
    """One row per drafter and temperature: tau of each set with its interval, and the mean."""
    names = list(rows[0]["sets"])
    header = ["drafter", "T", *names, "mean"]
    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    for row in rows:
        cells = [interval(one["tau"], one["tau_ci95"]) for one in row["sets"].values()]
        mean = f"**{interval(row['mean_tau'], row['mean_tau_ci95'])}**"
        lines.append(" | ".join([row["drafter"], f"{row['temperature']:g}", *cells, mean]))
    return "\n".join(f"| {line} |" for line in lines)


def interval(value: float, bounds: list[float]) -> str:
    """tau with half the width of its 95 % interval."""
    return f"{value:.2f} ± {(bounds[1] - bounds[0]) / 2:.2f}"


def replace_between(text: str, table: str) -> str:
    """The text with everything between the two markers replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def named_directory(text: str) -> tuple[str, Path]:
    """NAME=DIR."""
    name, _, directory = text.partition("=")
    return name, Path(directory)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="JSONL prompt sets, or a directory of them")
    parser.add_argument("--drafter", action="append", type=named_directory, required=True, metavar="NAME=DIR")
    parser.add_argument("--temperature", action="append", type=float, help="default: 0 and 1")
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
    args.temperature = args.temperature or [0.0, 1.0]
    return args


if __name__ == "__main__":
    main()
