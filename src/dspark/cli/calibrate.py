"""`dspark calibrate`: how far a drafter's confidence can be trusted, and a calibration that mends it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dspark.cli import console
from dspark.cli.destinations import check_directory, check_file
from dspark.cli.options import (
    DEFAULT_TARGET,
    BlockVerificationOption,
    Dtype,
    DtypeOption,
    JsonOption,
    TargetOption,
    TemperatureOption,
    examples,
)
from dspark.cli.session import Session, decode_options, open_session
from dspark.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dspark.calibration.file import Pair, Sampling
    from dspark.calibration.methods import MethodName
    from dspark.calibration.records import RoundRecords
    from dspark.calibration.report import CalibrationReport
    from dspark.calibration.shards import RecordStore
    from dspark.evaluation.prompts import PromptSet
    from dspark.evaluation.record_rounds import RecordingDecoder

EPILOG = examples(
    "dspark calibrate --data prompts/*.jsonl --temperature 1 --limit 40",
    "dspark calibrate my-drafter --data prompts --records runs/rounds --plot calibration.png",
    "dspark calibrate my-drafter --data chat.jsonl --output trial.json --json",
)

Method = Literal["sts", "isotonic", "logistic"]


def calibrate(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DRAFTER|FILE",
            help="Drafter directory (default: the one shipped for the target); more prompt files.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data", metavar="FILE|DIR", help="JSONL prompts: id, domain, turns. Repeatable.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="First N prompts of each set.", show_default=False)
    ] = None,
    report_share: Annotated[
        float, typer.Option("--report-share", metavar="X", help="Share of prompts to measure on; the rest is fitted.")
    ] = 0.5,
    method: Annotated[
        Method | None,
        typer.Option(
            "--method",
            help="What to save; all are compared. Default: `sts`, or `logistic` without a confidence head.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records", metavar="DIR", help="Keep the rounds here; an interrupted run goes on.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: DRAFTER/calibration.json.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="PNG", help="Reliability diagrams and ECE by position.", show_default=False),
    ] = None,
    target: TargetOption = DEFAULT_TARGET,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", metavar="N", min=1, help="Longest answer, in tokens.")
    ] = 256,
    temperature: TemperatureOption = 0.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Prompt i is sampled with N + i.")] = 0,
    block_verification: BlockVerificationOption = False,
    dtype: DtypeOption = "auto",
    json: JsonOption = False,
) -> None:
    """Decode prompts in full width, fit survival to what was accepted, and measure it on other prompts.

    A calibration holds for one temperature; run again for another, the file keeps both.
    """
    from dspark.calibration.file import FILE_NAME, Calibration, save_calibration
    from dspark.calibration.records import split_by_request
    from dspark.calibration.report import calibrate as run_calibration
    from dspark.calibration.shards import RecordStore
    from dspark.core.params import check_sampling
    from dspark.evaluation.calibration_figure import save_calibration_figure
    from dspark.evaluation.prompts import read_prompt_sets
    from dspark.evaluation.record_rounds import RecordingDecoder
    from dspark.figures import load_matplotlib
    from dspark.types import SamplingParams

    drafter, files = drafter_and_files(names or (), data or ())
    if not 0 < report_share < 1:
        raise ConfigError(f"--report-share is {report_share}; expected a share between 0 and 1")
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    check_sampling(params)
    sets = read_prompt_sets(files, limit)
    if plot is not None:
        load_matplotlib()
    check_file(output, "--output")
    check_file(plot, "--plot")
    check_directory(records, "--records")
    session = open_session(target, drafter, dtype, decode_options(None, block_verification), quiet=json, lookup=False)
    decoder = RecordingDecoder(session.loop, session.codec, params)
    path = output or _directory(session) / FILE_NAME
    check_file(path, "--output")
    pair, sampling = _pair(session, decoder.gamma), _sampling(decoder)
    store = None if records is None else RecordStore(records, _settings(decoder, pair, sampling, dtype, seed))
    rounds = _record(decoder, sets, store, seed, quiet=json)
    report = run_calibration(*split_by_request(rounds, report_share), _method(method, rounds))
    save_calibration(path, Calibration(pair, sampling, report.model, report.summary()))
    if plot is not None:
        save_calibration_figure(report, plot)
    if json:
        console.print_json(report.as_json() | {"calibration": str(path), "temperature": temperature})
    else:
        console.print_table(*_tables(report))
        console.print_text(f"{path}: {report.method.value} for temperature {temperature:g}", end="\n")


def drafter_and_files(names: Sequence[str], data: Sequence[Path]) -> tuple[str | None, list[Path]]:
    """A shell turns `--data *.jsonl` into one option and more arguments: what ends in .jsonl is a prompt file."""
    files = [*data, *(Path(name) for name in names if name.removesuffix(".gz").endswith(".jsonl"))]
    drafters = [name for name in names if Path(name) not in files]
    if len(drafters) > 1:
        raise ConfigError(f"more than one drafter: {', '.join(drafters)}; prompt files end in .jsonl or .jsonl.gz")
    if not files:
        raise ConfigError("no prompts; name prompt files or a folder of them with --data")
    return (drafters[0] if drafters else None), files


def _record(
    decoder: "RecordingDecoder", sets: "Sequence[PromptSet]", store: "RecordStore | None", seed: int, quiet: bool
) -> "RoundRecords":
    from dspark.evaluation.record_rounds import record_rounds

    with console.progress("Recording", sum(len(one.prompts) for one in sets), quiet=quiet) as bar:
        return record_rounds(
            decoder, sets, store, seed, watch=lambda name, rounds: bar.advance(f"{name}, {rounds} rounds")
        )


def _pair(session: Session, gamma: int) -> "Pair":
    from dspark.calibration.file import Pair

    info = session.loop.target.info
    return Pair(session.drafter_hash() or "", info.weights_hash, info.template_hash, gamma)


def _sampling(decoder: "RecordingDecoder") -> "Sampling":
    from dspark.calibration.file import Sampling
    from dspark.engine.round_recorder import draft_mode

    options = decoder.loop.options
    mode = draft_mode(options, decoder.params)
    return Sampling(mode, decoder.params.temperature, type(options.rule).__name__)


def _settings(
    decoder: "RecordingDecoder", pair: "Pair", sampling: "Sampling", dtype: Dtype, seed: int
) -> dict[str, Any]:
    """What decides the recorded rounds: written into every shard."""
    run = {"max_tokens": decoder.params.max_tokens, "dtype": dtype, "seed": seed}
    return {**asdict(pair), **asdict(sampling), **run}


def _method(name: Method | None, rounds: "RoundRecords") -> "MethodName":
    from dspark.calibration.methods import MethodName

    if name is not None:
        return MethodName(name)
    return MethodName.LOGISTIC if rounds.signals.confidence is None else MethodName.STS


def _directory(session: Session) -> Path:
    assert session.drafter_directory is not None  # a recording decoder has a drafter
    return session.drafter_directory


def _tables(report: "CalibrationReport") -> list["Table"]:
    rows = report.overall
    title = f"Survival by position: {report.report_rounds} rounds of prompts that were not fitted on"
    table = console.table(title, "slot", "survived", "predicted", "ECE raw", "ECE", "chance", "AUC", "Brier")
    for k, (before, after) in enumerate(zip(rows.before, rows.after, strict=True), 1):
        shares = (after.mean_observed, after.mean_predicted, before.ece, after.ece, after.ece_floor)
        table.add_row(str(k), *(f"{share:.1%}" for share in shares), f"{before.auc:.3f}", f"{after.brier:.4f}")
    return [table, _domains(report), _methods(report)]


def _domains(report: "CalibrationReport") -> "Table":
    table = console.table("Mean ECE over positions", "domain", "rounds", "raw", "calibrated")
    for name, one in {"all": report.overall, **report.domains}.items():
        figures = one.as_json()
        means = (f"{figures[key]:.1%}" for key in ("mean_ece_before", "mean_ece_after"))
        table.add_row(name, str(one.before[0].rounds), *means)
    return table


def _methods(report: "CalibrationReport") -> "Table":
    from dspark.calibration.report import mean_over_positions as mean

    table = console.table("Methods on the same rounds, means over positions", "method", "ECE", "AUC", "Brier")
    bound = {} if report.oracle is None else {"exact chances": report.oracle}
    for name, one in (report.alternatives | bound).items():
        ece, auc, brier = mean(one, lambda p: p.ece), mean(one, lambda p: p.auc), mean(one, lambda p: p.brier)
        table.add_row(name, f"{ece:.1%}", f"{auc:.3f}", f"{brier:.4f}")
    return table
