"""`dspark bench`: arms of the engine side by side under rising load."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import console
from dspark.cli.options import (
    DEFAULT_TARGET,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    IgnoreEosOption,
    JsonOption,
    MaxTokensOption,
    TargetOption,
    TemperatureOption,
    examples,
)
from dspark.cli.runner import INTERRUPTED
from dspark.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dspark.evaluation.bench.benchmark import Benchmark
    from dspark.evaluation.bench.load import Load
    from dspark.evaluation.bench.report import Row
    from dspark.evaluation.bench.runs import Done, RunJournal, Setting

EPILOG = examples(
    "dspark bench prompts --arms plain,lagged --concurrency 1,8",
    "dspark bench prompts --concurrency 1,2,4,8,16,32,64 --repeats 3 --journal runs/bench.jsonl --plot bench.png",
    "dspark bench prompts/gsm8k.jsonl --rate 0.5,1,2 --variation 3 --ignore-eos --json",
)
_LOAD, _RUNS, _ENGINE = "Load", "Runs", "Engine"


def bench(
    prompts: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="JSONL prompt sets: id, domain, turns.", show_default=False),
    ],
    arms: Annotated[
        str,
        typer.Option("--arms", metavar="A,B,...", help="plain, mtp-1, fixed, threshold, algorithm-1, lagged or `all`."),
    ] = "all",
    concurrency: Annotated[
        str,
        typer.Option(
            "--concurrency", metavar="N,...", help="Users who each wait for their answer.", rich_help_panel=_LOAD
        ),
    ] = "1,2,4,8",
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="R,...",
            help="Requests a second that arrive whatever happens, in place of users.",
            rich_help_panel=_LOAD,
            show_default=False,
        ),
    ] = None,
    variation: Annotated[
        float,
        typer.Option(
            "--variation",
            metavar="C",
            help="Coefficient of variation between arrivals: 1 is Poisson, more comes in bursts.",
            rich_help_panel=_LOAD,
        ),
    ] = 1.0,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="First N prompts of each set.", show_default=False)
    ] = None,
    max_prompt_tokens: Annotated[
        int, typer.Option("--max-prompt-tokens", metavar="N", min=1, help="Leave longer prompts out.")
    ] = 512,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            metavar="N",
            min=1,
            help="Measured per run. Default: 2 a user, at least 18; 100 with --rate.",
            rich_help_panel=_RUNS,
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Runs of every arm and load.", rich_help_panel=_RUNS)
    ] = 1,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Time all requests from first to last, without warm-up and without more to keep the load up.",
            rich_help_panel=_RUNS,
        ),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, rich_help_panel=_RUNS)] = 0,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="Record each run here; an interrupted benchmark goes on.",
            rich_help_panel=_RUNS,
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            "--steps",
            metavar="FILE",
            help="Append every step as a JSON line.",
            rich_help_panel=_RUNS,
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PNG", help="Draw the figures.", rich_help_panel=_RUNS, show_default=False),
    ] = None,
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    mtp: Annotated[
        str | None,
        typer.Option(
            "--mtp",
            metavar="DIR",
            help="Drafter of the arm mtp-1. Default: the drafter's first draft.",
            rich_help_panel="Drafting",
            show_default=False,
        ),
    ] = None,
    lookup: Annotated[
        bool,
        typer.Option(
            "--lookup", help="Copy drafts from where the text repeats itself, too.", rich_help_panel="Drafting"
        ),
    ] = False,
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    ignore_eos: IgnoreEosOption = False,
    max_requests: Annotated[
        int, typer.Option("--max-requests", metavar="N", min=1, help="Running at once.", rich_help_panel=_ENGINE)
    ] = 64,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Plan rounds while others run.", rich_help_panel=_ENGINE)
    ] = False,
    dtype: DtypeOption = "auto",
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> None:
    """Compare ways to decode under load: throughput, speed of users, drafts verified, where the time goes.

    Let the machine do nothing else meanwhile. Ctrl-C reports the runs that are done.
    """
    from dspark.cli.destinations import check_file
    from dspark.core.params import check_sampling
    from dspark.drafters.prompt_lookup import PromptLookup
    from dspark.engine.engine_options import EngineOptions
    from dspark.engine.models import open_models
    from dspark.evaluation.bench.arms import ARMS, find_arms
    from dspark.evaluation.bench.benchmark import Amount, Benchmark, encoded
    from dspark.evaluation.bench.engines import ArmEngines
    from dspark.evaluation.bench.report import rows
    from dspark.evaluation.bench.runs import RunJournal, settings
    from dspark.evaluation.prompts import read_prompt_sets
    from dspark.figures import load_matplotlib
    from dspark.types import SamplingParams

    chosen = find_arms(list(ARMS) if arms == "all" else [name.strip() for name in arms.split(",")])
    loads = _loads(concurrency, rate, variation)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=ignore_eos)
    check_sampling(params)
    options = EngineOptions(max_requests=max_requests, max_batched_tokens=max(512, 8 * max_requests), overlap=overlap)
    check_file(plot, "--plot")
    check_file(steps, "--steps")
    if plot is not None:
        load_matplotlib()
    sets = read_prompt_sets(prompts, limit)
    with console.status(f"Loading {target} ...", quiet=json):
        models = open_models(target, drafter, "bf16" if dtype == "auto" else dtype, device)
        engines = ArmEngines(models, options, None if mtp is None else models.beside(mtp))
    if lookup:
        engines.lookup = PromptLookup()
    room = models.target.info.max_positions - max_tokens
    benchmark = Benchmark(
        engines,
        encoded(models.codec, sets, min(max_prompt_tokens, room)),
        params,
        Amount(requests, not whole),
        seed,
        steps,
    )
    for load in loads:
        benchmark.workload(load)  # refuses now what cannot be
    record = None if journal is None else RunJournal(journal, benchmark.common())
    todo = list(settings([arm.name for arm in chosen], loads, repeats, seed))
    done, finished = _run(benchmark, todo, record, quiet=json)
    for note in engines.notes:
        console.note(note, quiet=json)
    found = rows(done)
    if plot is not None and found:
        _plot(benchmark, found, plot)
    if json:
        report = {"rows": [row.as_json() for row in found], "settings": benchmark.common(), "finished": finished}
        console.print_json(report | {"notes": engines.notes})
    elif found:
        console.print_table(_table(found))
    if not finished:
        raise typer.Exit(INTERRUPTED)


def _loads(concurrency: str, rate: str | None, variation: float) -> "list[Load]":
    """Each level once."""
    from dspark.evaluation.bench.arrivals import Bursty, Poisson
    from dspark.evaluation.bench.load import Closed, Open

    if rate is None:
        return [Closed(int(users)) for users in dict.fromkeys(_numbers(concurrency, "--concurrency", whole=True))]
    rates = dict.fromkeys(_numbers(rate, "--rate", whole=False))
    return [Open(Poisson(each) if variation == 1 else Bursty(each, variation)) for each in rates]


def _numbers(text: str, option: str, whole: bool) -> list[float]:
    try:
        return [int(part) if whole else float(part) for part in text.split(",")]
    except ValueError as error:
        kind = "whole numbers" if whole else "numbers"
        raise ConfigError(f"{option} is {text!r}; expected {kind} with commas between them") from error


def _run(
    benchmark: "Benchmark", todo: "Sequence[Sequence[Setting]]", record: "RunJournal | None", quiet: bool
) -> "tuple[list[Done], bool]":
    """The runs that were made, and whether these are all."""
    from dspark.evaluation.bench.runs import make_runs

    done: list[Done] = []
    with console.progress("Running", sum(map(len, todo)), quiet=quiet) as bar:

        def some(settings: "Sequence[Setting]"):  # type: ignore[no-untyped-def]
            load = settings[0].load
            asked = len(settings) * benchmark.amount.of(load)[0]
            remark = f"{len(settings)} arms at {load.users or load.rate:g}"
            return benchmark.run(settings, lambda ended: bar.show(len(done), f"{remark}: {ended} of {asked}"))

        try:
            for together in make_runs(todo, some, record):
                done += together
                bar.show(len(done), "")
        except KeyboardInterrupt:
            return done, False
    return done, True


def _plot(benchmark: "Benchmark", found: "Sequence[Row]", path: Path) -> None:
    from dspark.evaluation.bench.figure import save_bench_figure

    common = benchmark.common()
    save_bench_figure(found, path, f"{common['target']} on {common['processor']}, {common['threads']} threads")


def _table(found: "Sequence[Row]") -> "Table":
    title = "Tokens a second in total, of the median user; seconds to the first token; drafts verified a round"
    table = console.table(title, "load", "arm", "total", "/ plain", "user", "first", "tau", "verified", "schedule")
    for row in found:
        speed, plain = row.figures["tokens_per_second"], row.over.get("plain")
        assert speed is not None
        value = {name: row.value(name) or 0.0 for name in row.figures}
        interval = f" ({speed.low:.0f} to {speed.high:.0f})" if row.repeats > 1 else ""
        table.add_row(
            f"{row.load.users or row.load.rate:g}",
            row.arm,
            f"{speed.median:.1f}{interval}",
            "" if plain is None else f"{plain.median:.2f}",
            f"{value['user_tokens_per_second_p50']:.1f}",
            f"{value['first_token_seconds_p50']:.2f}",
            f"{value['tau']:.2f}",
            f"{value['verified_per_request']:.2f}",
            f"{value['schedule_share']:.1%}",
        )
    return table
