"""Accepted length of drafters over prompt sets at several temperatures, as JSON and as a table in the README.

Every prompt is journalled, so an interrupted run goes on where it stopped.

    python benchmarks/tau_table.py ../shared/data/eval --drafter DSpark=src/dspark/drafters/weights/smollm2-135m \
        --drafter DFlash=runs/dflash/drafter --prompts 24 --work runs/tau
"""

import argparse
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from dspark.drafters.registry import load_drafter
from dspark.drafters.shipped import NO_DRAFTER
from dspark.engine.models import open_models
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.evaluation.decode import PromptDecoder
from dspark.evaluation.evaluate import Journal, evaluate
from dspark.evaluation.prompts import read_prompt_sets
from dspark.types import SamplingParams

TARGET = "smollm2-135m"
BEGIN, END = "<!-- tau table: begin -->", "<!-- tau table: end -->"


def main() -> None:
    """Evaluate, write the JSON report, and put the table where the README keeps it."""
    args = arguments()
    sets = read_prompt_sets(args.sets, args.prompts)
    models = open_models(TARGET, NO_DRAFTER)
    rows: list[dict[str, Any]] = []
    for name, directory in args.drafter:
        drafter = load_drafter(directory, models.target)
        for temperature in args.temperature:
            params = SamplingParams(temperature=temperature, max_tokens=args.max_tokens)
            options = DecodeOptions(max_draft_tokens=args.max_draft_tokens)
            decode = PromptDecoder(ReferenceLoop(models.target, drafter, options), models.codec, params)
            settings = decode.settings() | {
                "drafter_hash": sha256((directory / "model.safetensors").read_bytes()).hexdigest()
            }
            journal = Journal(args.work / f"{name}-{temperature:g}.jsonl", settings)
            report = evaluate(decode, sets, args.seed, journal, lambda one, outcome: print(".", end="", flush=True))
            rows.append({"drafter": name, "temperature": temperature, **report.as_json()})
            print(f" {name} T={temperature:g}: mean tau {report.mean_tau:.3f}")
    table = markdown(rows)
    print(table)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    settings = {"prompts": args.prompts, "max_tokens": args.max_tokens, "seed": args.seed, "torch": torch.__version__}
    args.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
    if args.readme is not None:
        args.readme.write_text(replace_between(args.readme.read_text(), table))


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
    parser.add_argument("--work", type=Path, default=Path("runs/tau"), help="journals go here")
    parser.add_argument("--json", type=Path, default=Path("docs/results/tau.json"))
    parser.add_argument("--readme", type=Path, help="rewrite the table between the markers of this file")
    args = parser.parse_args()
    args.temperature = args.temperature or [0.0, 1.0]
    return args


if __name__ == "__main__":
    main()
