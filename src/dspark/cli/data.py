"""`dspark data`: what a drafter learns from. `regenerate` has a target answer prompts, `estimate` foretells costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark.cli import console
from dspark.cli.endpoint_options import (
    ApiKeyEnvOption,
    ApiOption,
    AttemptsOption,
    EndpointFlags,
    EndpointOption,
    ModelOption,
    TimeoutOption,
    TokenIdsOption,
)
from dspark.cli.estimate import EPILOG as ESTIMATE_EPILOG
from dspark.cli.estimate import estimate
from dspark.cli.options import (
    DEFAULT_TARGET,
    Dtype,
    DtypeOption,
    JsonOption,
    MaxTokensOption,
    MinPOption,
    SystemOption,
    TargetOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    examples,
)
from dspark.cli.runner import FAILURE, INTERRUPTED
from dspark.errors import ConfigError

if TYPE_CHECKING:
    from dspark.data.answer_row import Provenance
    from dspark.data.answer_source import AnswerSource, SamplingSettings
    from dspark.data.endpoint import Endpoint
    from dspark.data.regenerate import Progress, RegenerateReport
    from dspark.data.transcript import Transcriber
    from dspark.targets.registry import LoadedTarget

EPILOG = examples(
    "dspark data regenerate prompts.jsonl --output answers.jsonl.gz",
    "dspark data regenerate prompts.parquet -o answers.jsonl --endpoint http://localhost:8000/v1 "
    "--target Qwen/Qwen3-4B -T 0.7 --top-p 0.8 --top-k 20 --max-tokens 4096",
    "dspark data regenerate org/dataset --split train --limit 1000 -o answers.jsonl --json",
)

app = typer.Typer(help="Prepare what a drafter learns from.", no_args_is_help=True, rich_markup_mode="rich")
app.command("estimate", epilog=ESTIMATE_EPILOG)(estimate)


@app.command("regenerate", epilog=EPILOG)
def regenerate(
    prompts: Annotated[
        list[str],
        typer.Argument(
            metavar="PROMPTS...",
            help="JSONL or parquet files, folders, or org/name of hub data sets, with turns, prompt or messages.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="JSONL for `dspark train`; .gz is compressed. The same command goes on with it.",
            show_default=False,
        ),
    ],
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="Split of hub data sets.")] = "train",
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="First N prompts of each source.", show_default=False),
    ] = None,
    target: TargetOption = DEFAULT_TARGET,
    system: SystemOption = None,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Let the chat template ask for thoughts; recorded with every answer.")
    ] = False,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Decides, with its id, the seed of an answer.")
    ] = 0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Answers written at once.")
    ] = 32,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    api: ApiOption = "completions",
    token_ids: TokenIdsOption = True,
    api_key_env: ApiKeyEnvOption = "OPENAI_API_KEY",
    timeout: TimeoutOption = 600.0,
    attempts: AttemptsOption = 6,
    dtype: DtypeOption = "auto",
    json: JsonOption = False,
) -> None:
    """Let a target answer prompts, so that its drafter learns from its own words.

    Every turn of a conversation is answered in the context of the target's own earlier answers. What failed goes to
    FILE.errors.jsonl and is asked again by the same command, which also goes on after Ctrl-C or a kill.
    """
    from dspark.data.answer_file import AnswerFile, ErrorFile
    from dspark.data.answer_source import SamplingSettings
    from dspark.data.prompt_sources import read_conversations
    from dspark.data.regenerate import Regeneration, report_json
    from dspark.data.transcript import Transcriber
    from dspark.targets.registry import load_tokenizer

    flags = EndpointFlags(endpoint, model, api, token_ids, api_key_env, timeout, attempts)
    settings = SamplingSettings(temperature, top_k, top_p, min_p, max_tokens)
    _check(settings, output)
    conversations = read_conversations(prompts, split=split, limit=limit, system=system)
    with console.status(f"Loading {target} ...", quiet=json):
        transcriber = Transcriber(load_tokenizer(target), thinking)
        built_in = None if endpoint is not None else _load(target, dtype)
    source = _source(flags, built_in, target, transcriber, settings, concurrency)
    provenance = _provenance(flags, built_in, target, transcriber, settings, seed)
    file, errors = AnswerFile(output, provenance.as_json()), ErrorFile(output)
    total = sum(len(conversation.turns) for conversation in conversations)
    with console.progress("Answering", total, quiet=json) as bar:

        def watch(progress: "Progress") -> None:
            bar.show(progress.answers, progress.last + (f", {progress.failed} failed" if progress.failed else ""))

        report = Regeneration(conversations, transcriber, provenance, file, errors, watch).run(source)
    if json:
        console.print_json(report_json(report, file, errors))
    else:
        console.print_text(_outcome(report, output, errors.path), end="\n")
    if not report.finished:
        raise typer.Exit(FAILURE if report.failed and not report.interrupted else INTERRUPTED)


def _check(settings: "SamplingSettings", output: Path) -> None:
    from dspark.core.params import check_sampling
    from dspark.engine.side_by_side import sampling_params

    check_sampling(sampling_params(settings, seed=0))
    if not output.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"--output {output} should end in .jsonl or .jsonl.gz.")


def _load(target: str, dtype: Dtype) -> "LoadedTarget":
    from dspark.targets.registry import load_target

    return load_target(target, "bf16" if dtype == "auto" else dtype)


def _source(
    flags: EndpointFlags,
    built_in: "LoadedTarget | None",
    target: str,
    transcriber: "Transcriber",
    settings: "SamplingSettings",
    concurrency: int,
) -> "AnswerSource":
    from random import Random

    from dspark.data.endpoint import EndpointAnswers
    from dspark.data.openai_protocol import OpenAIProtocol
    from dspark.engine.side_by_side import SideBySide

    if built_in is not None:
        return SideBySide(built_in, transcriber, settings, concurrency)
    protocol = OpenAIProtocol(flags.model or target, transcriber, settings, flags.api, flags.token_ids)
    return EndpointAnswers(_endpoint(flags, concurrency), protocol, Random())


def _endpoint(flags: EndpointFlags, concurrency: int) -> "Endpoint":
    import os

    from dspark.data.backoff import Backoff
    from dspark.data.endpoint import Endpoint

    key = os.environ.get(flags.api_key_env, "")
    return Endpoint(flags.url or "", key, concurrency, flags.timeout, Backoff(flags.attempts))


def _provenance(
    flags: EndpointFlags,
    built_in: "LoadedTarget | None",
    target: str,
    transcriber: "Transcriber",
    settings: "SamplingSettings",
    seed: int,
) -> "Provenance":
    from dspark.data.answer_row import Provenance

    name = flags.model or target if built_in is None else built_in.info.name
    target_hash = "" if built_in is None else built_in.info.weights_hash
    return Provenance(name, transcriber.template_hash, transcriber.thinking, seed, settings, target_hash)


def _outcome(report: "RegenerateReport", output: Path, errors: Path) -> str:
    parts = [f"{output}: {report.answers} answers, {report.new} new ({report.response_tokens} tokens"]
    parts.append(f", {report.truncated} cut at the limit)" if report.truncated else ")")
    if report.failed:
        parts.append(f"; {report.failed} failed, see {errors}; the same command asks again")
    if report.interrupted:
        parts.append("; stopped, the same command goes on from here")
    return "".join(parts)
