"""Single-stream speed: this engine plainly, with its drafter, with copied drafts beside it; `generate` of transformers.

All arms answer the same prompts one at a time, take turns on each prompt, and are timed by the same clock around the
whole call, prompt included; one ratio leaves the prompt out. Ratios are taken per repeat; median and spread are
printed.

    python benchmarks/single_stream.py PROMPTS/gsm8k.jsonl PROMPTS/humaneval.jsonl --prompts 8
"""

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from dspark.data.chat import user_turn
from dspark.doctor.machine import processor
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.models import open_models
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.start_profile import start_limit
from dspark.evaluation.agreement import first_divergence
from dspark.evaluation.compare import Decode, Decoded, Timed, decoding_speed, loop_decoder, run_arms, speed, tally
from dspark.evaluation.prompts import read_prompt_set
from dspark.targets.embedded import converted_directory
from dspark.types import SamplingParams

TARGET = "smollm2-135m"


def transformers_decoder(max_tokens: int) -> Decode:
    """`generate` of transformers, greedy, bf16, with the same end token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(converted_directory(), dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def decode(prompt_ids: Sequence[int]) -> Decoded:
        ids = torch.tensor([list(prompt_ids)])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
        return Decoded(tuple(output[0, len(prompt_ids) :].tolist()))

    return decode


def main() -> None:
    """Run the arms and print a table and, with --json, every figure."""
    args = arguments()
    params = SamplingParams(max_tokens=args.max_tokens, temperature=0.0)
    models = open_models(TARGET, args.drafter)
    target, codec = models.target, models.codec
    drafter, _ = models.speculative()
    choice = start_limit(models, params)
    limit = args.max_draft_tokens or choice.drafts
    lookup = choice.lookup if args.lookup_drafts is None else PromptLookup(args.lookup_drafts)
    options = DecodeOptions(max_draft_tokens=limit)
    arms: dict[str, Decode] = {
        "plain": loop_decoder(ReferenceLoop(target), params),
        "drafter": loop_decoder(ReferenceLoop(target, drafter, options), params),
        "speculative": loop_decoder(ReferenceLoop(target, drafter, replace(options, lookup=lookup)), params),
    }
    if not args.without_transformers:
        arms["transformers bf16"] = transformers_decoder(args.max_tokens)
    report: dict[str, object] = {
        "machine": machine(),
        "max_draft_tokens": limit,
        "lookup": None if lookup is None else asdict(lookup),
        "settings": {k: str(v) for k, v in vars(args).items()},
    }
    for path in args.sets:
        prompts = [codec.encode_chat(user_turn(p.turns[0])) for p in read_prompt_set(path, args.prompts).prompts]
        run_arms(arms, prompts[:1])  # first calls build kernels and caches
        runs = run_arms(arms, prompts, args.repeats)
        report[path.stem] = summary(runs) | {"divergences": divergences(target, prompts, runs)}
        print(path.stem, json.dumps(report[path.stem], indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


def summary(runs: dict[str, list[list[Timed]]]) -> dict[str, object]:
    """Tokens per second of each arm, ratios of the speculative arm, and its tau."""
    speeds = {arm: speed(answers) for arm, answers in runs.items()}
    figures: dict[str, object] = {
        arm: {"tokens_per_second": round(s.median, 2), "spread": [round(x, 2) for x in s.spread]}
        for arm, s in speeds.items()
    }
    for arm, s in speeds.items():
        if arm != "speculative":
            ratio = speeds["speculative"].over(s)
            figures[f"speculative / {arm}"] = [round(x, 3) for x in (ratio.median, *ratio.spread)]
    alone = decoding_speed(runs["speculative"]).over(decoding_speed(runs["plain"]))
    figures["speculative / plain, prompt excluded"] = [round(x, 3) for x in (alone.median, *alone.spread)]
    rounds = tally(runs["speculative"])
    figures["tau"] = round(rounds.tau, 3)
    figures["acceptance_by_position"] = [round(x, 3) for x in rounds.acceptance_by_position()]
    return figures


def divergences(target, prompts, runs) -> list[dict[str, object]]:  # type: ignore[no-untyped-def]
    """Where the speculative answers leave the plain ones, and whether the target was undecided there."""
    found = []
    for index, prompt in enumerate(prompts):
        plain, other = (runs[arm][0][index].decoded.token_ids for arm in ("plain", "speculative"))
        divergence = first_divergence(target, prompt, plain, other)
        if divergence is not None:
            found.append({"prompt": index, **{k: getattr(divergence, k) for k in ("position", "margin", "explained")}})
    return found


def machine() -> dict[str, str]:
    """What the numbers were made on."""
    return {
        "processor": str(processor()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="JSONL prompt sets")
    parser.add_argument("--drafter", type=Path, help="drafter directory (default: the shipped one)")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each set")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--max-draft-tokens", type=int, help="cap below the drafter's gamma (default: measured)")
    parser.add_argument("--lookup-drafts", type=int, help="tokens copied at a time (default: measured)")
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--json", help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
