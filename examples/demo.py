"""What `make demo` runs: the embedded target answers with its drafter, then both ways of decoding are compared.

python examples/demo.py [--drafter DIR] [--max-tokens 96]
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dspark.data.chat import user_turn
from dspark.engine.models import open_models
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.engine.start_profile import start_limit
from dspark.errors import DsparkError
from dspark.evaluation.agreement import first_divergence
from dspark.evaluation.compare import loop_decoder, run_arms, speed, tally
from dspark.types import SamplingParams

TARGET = "smollm2-135m"
PROMPTS = (
    "A baker makes 24 rolls and sells a third of them in the morning. How many are left?",
    "Write a Python function that returns the largest number of a list.",
    "A train travels 180 km in 3 hours. How far does it get in 5 hours at the same speed?",
    "Explain in three sentences why the sky is blue.",
)


def main() -> None:
    """Stream one answer, then time both arms on all prompts and check that their outputs agree."""
    args = arguments()
    console = Console(highlight=False)
    models = open_models(TARGET, args.drafter)
    target, codec = models.target, models.codec
    drafter, directory = models.speculative()
    params = SamplingParams(max_tokens=args.max_tokens)
    choice = start_limit(models, params)
    limit = choice.drafts
    if choice.warning is not None:
        console.print(f"[dim]{choice.warning}[/dim]")
    copied = "" if choice.lookup is None else f"; what repeats is copied, {choice.lookup.drafts} at a time"
    drafting = f"{limit} of {drafter.info.gamma} drafts a round pay here"
    console.print(f"[bold]{TARGET}[/bold] with {directory.name}: {drafting}{copied}\n")

    loop = ReferenceLoop(target, drafter, DecodeOptions(limit, lookup=choice.lookup))
    prompts = [codec.encode_chat(user_turn(prompt)) for prompt in PROMPTS]
    console.print(f"[dim]{PROMPTS[0]}[/dim]")
    for commit in loop.start(prompts[0], params, codec.detokeniser()):
        sys.stdout.write(commit.text)
        sys.stdout.flush()
    print("\n")

    arms = {"plain": loop_decoder(ReferenceLoop(target), params), "speculative": loop_decoder(loop, params)}
    with console.status("Timing both on the same prompts ..."):
        runs = run_arms(arms, prompts)
    plain, speculative = speed(runs["plain"]), speed(runs["speculative"])
    rounds = tally(runs["speculative"])
    table = Table("", "tokens/s", "tau", "accepted by position", title="Same prompts, same clock, greedy")
    table.add_row("plain", f"{plain.median:.1f}", "1.00", "")
    shares = " ".join(f"{share:.0%}" for share in rounds.acceptance_by_position())
    table.add_row("speculative", f"{speculative.median:.1f}", f"{rounds.tau:.2f}", shares)
    console.print(table)
    console.print(f"speculative / plain: [bold]{speculative.over(plain).median:.2f}x[/bold]")
    console.print(agreement(target, prompts, runs))


def agreement(target, prompts, runs) -> str:  # type: ignore[no-untyped-def]
    """One line on whether the two arms wrote the same."""
    pairs = zip(prompts, runs["plain"][0], runs["speculative"][0], strict=True)
    found = [first_divergence(target, p, a.decoded.token_ids, b.decoded.token_ids) for p, a, b in pairs]
    turned = [divergence for divergence in found if divergence is not None]
    unexplained = [divergence for divergence in turned if not divergence.explained]
    if unexplained:
        raise DsparkError(f"Outputs differ where the target was not undecided: {unexplained}. Please report this.")
    if turned:
        margins = ", ".join(f"{divergence.margin:.3f}" for divergence in turned)
        return f"outputs agree, up to {len(turned)} near-ties of the target (logit margins {margins})"
    return f"outputs agree: all {len(prompts)} answers are identical, token for token"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", type=Path, help="drafter directory (default: the shipped one)")
    parser.add_argument("--max-tokens", type=int, default=96)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except DsparkError as error:
        sys.exit(f"error: {error}")
