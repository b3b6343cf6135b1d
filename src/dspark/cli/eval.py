"""`dspark eval`: accepted length and acceptance by position over prompt sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import console
from dspark.cli.drafter_note import note_missing_drafter
from dspark.cli.options import (
    DEFAULT_TARGET,
    BlockVerificationOption,
    DrafterOption,
    DtypeOption,
    JsonOption,
    LookupOption,
    MaxDraftTokensOption,
    MaxTokensOption,
    MinPOption,
    TargetOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    examples,
)
from dspark.cli.session import decode_options, open_session

if TYPE_CHECKING:
    from rich.table import Table

    from dspark.evaluation.evaluate import EvalReport

EPILOG = examples(
    "dspark eval prompts/gsm8k.jsonl --limit 24",
    "dspark eval prompts --drafter my-drafter --temperature 1 --limit 24 --json",
    "dspark eval prompts --journal runs/eval.jsonl",
)


def evaluate(
    prompts: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="JSONL prompt sets: id, domain, turns.", show_default=False),
    ],
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="First N prompts of each set.", show_default=False)
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="FILE", help="Record each prompt here; an interrupted run goes on.", show_default=False
        ),
    ] = None,
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Prompt i is sampled with N + i.")] = 0,
    max_draft_tokens: MaxDraftTokensOption = None,
    lookup: LookupOption = None,
    block_verification: BlockVerificationOption = False,
    dtype: DtypeOption = "auto",
    json: JsonOption = False,
) -> None:
    """Measure tau (accepted drafts + 1 per round) and acceptance by position over prompt sets."""
    from dspark.core.params import check_sampling
    from dspark.evaluation.decode import PromptDecoder
    from dspark.evaluation.evaluate import Journal
    from dspark.evaluation.evaluate import evaluate as run_evaluation
    from dspark.evaluation.prompts import read_prompt_sets
    from dspark.types import SamplingParams

    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, max_tokens=max_tokens)
    check_sampling(params)
    sets = read_prompt_sets(prompts, limit)
    options = decode_options(max_draft_tokens, block_verification)
    session = open_session(target, drafter, dtype, options, quiet=json, lookup=bool(lookup))
    note_missing_drafter(session, drafter, quiet=json)
    decoder = PromptDecoder(session.loop, session.codec, params)
    record = Journal(
        journal, decoder.settings() | {"drafter_hash": session.drafter_hash(), "dtype": dtype, "seed": seed}
    )
    with console.progress("Decoding", sum(len(one.prompts) for one in sets), quiet=json) as bar:
        report = run_evaluation(decoder, sets, seed, record, lambda name, outcome: bar.advance(name))
    if json:
        console.print_json(report.as_json())
    else:
        console.print_table(_table(report))


def _table(report: "EvalReport") -> "Table":
    low, high = report.mean_tau_ci95
    title = f"Mean tau {report.mean_tau:.3f} [{low:.3f}, {high:.3f}]"
    table = console.table(title, "set", "prompts", "tau", "95 % interval", "tokens/s", "accepted by position")
    for one in report.sets:
        low, high = one.tau_ci95
        shares = " ".join(f"{share:.0%}" for share in one.tally.acceptance_by_position())
        speed = one.as_json()["tokens_per_second"]
        table.add_row(one.name, str(one.prompts), f"{one.tau:.3f}", f"{low:.3f} to {high:.3f}", f"{speed:.1f}", shares)
    return table
