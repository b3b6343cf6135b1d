"""`dspark profile`: what a round costs on this machine, by tokens, context and drafts."""

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark.cli import console
from dspark.cli.options import DEFAULT_TARGET, DrafterOption, DtypeOption, JsonOption, TargetOption, examples

if TYPE_CHECKING:
    from rich.table import Table

    from dspark.engine.models import Models
    from dspark.engine.profile_plan import ProfilePlan
    from dspark.engine.profile_store import ProfileKey
    from dspark.engine.round_profile import RoundProfile

EPILOG = examples(
    "dspark profile",
    "dspark profile --context 256 --context 1024 --plot cost.png --fresh",
    "dspark profile --requests 16 --seconds 30",
    "dspark profile --drafter none --threads 1 --json",
)
SEED = 0
STEPS = 100


def profile(
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            "--context",
            "-c",
            metavar="N",
            help="Committed positions before the round; may be given again. Default: 16, 256 and 1024.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", min=1, help="Most requests at once; 1 is for decoding alone.")
    ] = 64,
    threads: Annotated[
        int | None,
        typer.Option("--threads", metavar="N", min=1, help="Default: as torch chooses.", show_default=False),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.0, help="Time for repeats; each size is timed at least 4 times."),
    ] = 60.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again, even where an earlier profile fits.", show_default=False)
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="PNG", help="Draw the cost curve.", show_default=False)
    ] = None,
    dtype: DtypeOption = "auto",
    json: JsonOption = False,
) -> None:
    """Time verification by tokens and context, and drafting, and keep the result: later runs draft by it.

    Let the machine do nothing else meanwhile.
    """
    from dspark.engine.models import open_models
    from dspark.engine.profile_plan import full_plan
    from dspark.engine.profile_store import ProfileKey
    from dspark.engine.start_profile import WORTH_KEEPING
    from dspark.evaluation.cost_figure import save_cost_figure
    from dspark.figures import load_matplotlib
    from dspark.types import RaggedTarget

    if plot is not None:
        load_matplotlib()
    if threads is not None:
        _use_threads(threads)
    with console.status(f"Loading {target} ...", quiet=json):
        models = open_models(target, drafter, "bf16" if dtype == "auto" else dtype)
    key = ProfileKey.of(models)
    alone = not isinstance(models.target, RaggedTarget)
    plan = full_plan(models.target.info, key.gamma, context or (), seconds, 1 if alone else requests)
    if alone and requests > 1:
        console.note(f"{models.target.info.name} takes one request a forward: one is measured", quiet=json)
    found = _profile(models, key, plan, fresh, quiet=json)
    if plot is not None:
        save_cost_figure(found, plot, f"{models.target.info.name} on {key.processor}, {key.threads} threads")
    limits = _limits(models, found)
    if found.table.noise > WORTH_KEEPING:
        console.note("very noisy: run again with --fresh when the machine is idle", quiet=json)
    if json:
        console.print_json(found.as_json() | {"threads": key.threads, "kernel": key.kernel, "draft_limit": limits})
    else:
        how = f"Fastest of {found.turns} turns, differences below {found.table.noise:.1%} are noise"
        console.print_table(_verification(found), how, *_rounds(models, found, limits))


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _profile(models: "Models", key: "ProfileKey", plan: "ProfilePlan", fresh: bool, quiet: bool) -> "RoundProfile":
    """The kept profile if it has every point of `plan`, or a new one, which is kept."""
    from dspark.engine.profile_store import ProfileStore
    from dspark.engine.profiling import profile_rounds

    store = ProfileStore()
    kept = None if fresh else store.load(key)
    if kept is not None and plan.covered_by(kept):
        console.note("from an earlier run; --fresh measures again", quiet)
        return kept
    with console.progress("Profiling", STEPS, quiet=quiet) as bar:
        measured = profile_rounds(
            models.target,
            models.drafter,
            plan,
            Random(SEED),
            watch=lambda share: bar.show(round(STEPS * share), ""),
            subject=key.subject(),
        )
    store.save(measured, key)
    return measured


def _limits(models: "Models", found: "RoundProfile") -> dict[str, int]:
    """Drafts that pay at temperature 0 and 1."""
    from dspark.engine.draft_limit import draft_limit
    from dspark.engine.row_seconds import row_seconds
    from dspark.types import SamplingParams

    if models.drafter is None:
        return {}
    info = models.drafter.info
    requests = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0)}
    return {
        name: draft_limit(found, info, params, row_seconds(info.vocab_size, params)).drafts
        for name, params in requests.items()
    }


def _verification(found: "RoundProfile") -> "Table":
    costs = found.table
    contexts = (f"after {context}" for context in costs.contexts)
    table = console.table("Verification", "tokens", "of requests", *contexts, "per token")
    for i, tokens in enumerate(costs.tokens):
        seconds = [row[i] for row in costs.verify_seconds]
        cells = [f"{_ms(s)} ± {row[i]:.0%}" for s, row in zip(seconds, found.verify_noise, strict=True)]
        table.add_row(str(tokens), str(costs.spread[i] if costs.spread else 1), *cells, _ms(seconds[0] / tokens))
    return table


def _rounds(models: "Models", found: "RoundProfile", limits: dict[str, int]) -> list[Any]:
    """Whole rounds of one request by number of drafts, and how many pay."""
    if models.drafter is None:
        return []
    from dspark.engine.draft_limit import expected_tokens, round_seconds
    from dspark.engine.profile_plan import SHORT_CONTEXT
    from dspark.engine.row_seconds import row_seconds
    from dspark.types import SamplingParams

    info, requests = models.drafter.info, [SamplingParams(temperature=temperature) for temperature in (0.0, 1.0)]
    tokens = [expected_tokens(info, params) for params in requests]
    times = [round_seconds(found, info, row_seconds(info.vocab_size, params)) for params in requests]
    rest = _ms(found.table.overhead_seconds)
    title = f"Whole greedy rounds after {SHORT_CONTEXT} positions, {rest} of each outside the models"
    table = console.table(title, "drafts", "draft", "round", "of plain", "speed at T = 0", "at T = 1")
    for k, greedy in enumerate(times[0]):
        speeds = (f"{expected[k] * time[0] / time[k]:.2f}x" for expected, time in zip(tokens, times, strict=True))
        table.add_row(str(k), _ms(found.block(k)), _ms(greedy), f"{greedy / times[0][0]:.2f}", *speeds)
    best = ", ".join(f"{drafts} ({name})" for name, drafts in limits.items())
    return [
        table,
        f"Drafts that pay, by the acceptance measured in training: {best}",
        *_batches(found),
    ]


def _batches(found: "RoundProfile") -> list[Any]:
    """Drafting of many requests at once, and what is not known of more."""
    costs = found.table
    most = costs.requests[-1]
    remark = (
        f"Drafting was timed for up to {most} request{'s'[: most > 1]} at once; what larger batches would need is "
        "extrapolated, and schedulers do not trim by it"
    )
    if most == 1:
        return [remark]
    table = console.table("Drafting", "requests", "one slot each", "whole blocks", "a block")
    for requests, first, whole in zip(costs.requests, costs.first_drafts, costs.draft_seconds, strict=True):
        table.add_row(str(requests), _ms(first), _ms(whole), _ms(whole / requests))
    return [table, remark]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
