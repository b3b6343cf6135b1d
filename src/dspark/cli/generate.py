"""`dspark generate`: answer one prompt, printing the text as it is committed."""

from pathlib import Path
from typing import Annotated

import typer

from dspark.cli import console
from dspark.cli.drafter_note import note_missing_drafter
from dspark.cli.options import (
    DEFAULT_TARGET,
    BlockVerificationOption,
    DrafterOption,
    DtypeOption,
    FrequencyPenaltyOption,
    IgnoreEosOption,
    JsonOption,
    LookupOption,
    MaxDraftTokensOption,
    MaxTokensOption,
    MinPOption,
    PresencePenaltyOption,
    RepetitionPenaltyOption,
    SeedOption,
    StopOption,
    SystemOption,
    TargetOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    examples,
    seed_or_fresh,
)
from dspark.cli.prompt_text import checked_text, read_prompt
from dspark.cli.session import decode_options, open_session
from dspark.cli.summary import answer_json, summary
from dspark.errors import ConfigError

EPILOG = examples(
    'dspark generate "Why is the sky blue?"',
    'dspark generate "Tell a story." --temperature 0.8 --top-p 0.95 --seed 7',
    'dspark generate --raw "Once upon a time" --max-tokens 64 --drafter none',
    "cat question.txt | dspark generate - --json",
)


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; `-` reads it from stdin.", show_default=False)
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", metavar="FILE", help="Read the prompt from a file.", show_default=False),
    ] = None,
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    presence_penalty: PresencePenaltyOption = 0.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    max_draft_tokens: MaxDraftTokensOption = None,
    lookup: LookupOption = None,
    block_verification: BlockVerificationOption = False,
    ignore_eos: IgnoreEosOption = False,
    dtype: DtypeOption = "auto",
    json: JsonOption = False,
) -> None:
    """Answer a prompt with speculative decoding. The text is what the target alone would have written."""
    text = read_prompt(prompt, prompt_file)
    if raw and system is not None:
        raise ConfigError("--system needs the chat template, which --raw leaves out. Drop one of the two.")
    for given in (system or "", *(stop or ())):
        checked_text(given, "system message or stop string")
    from dspark.core.params import check_sampling
    from dspark.data.chat import user_turn
    from dspark.types import SamplingParams

    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed_or_fresh(seed),
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    check_sampling(params)
    options = decode_options(max_draft_tokens, block_verification)
    seeded = seed is not None
    session = open_session(
        target, drafter, dtype, options, quiet=json, measure_for=params, seeded=seeded, lookup=lookup
    )
    codec = session.codec
    answer = session.start(codec.encode(text) if raw else codec.encode_chat(user_turn(text, system)), params)
    note_missing_drafter(session, drafter, quiet=json)
    if json:
        console.print_json(answer_json(answer.finish()) | {"seed": params.seed})
        return
    for commit in answer:
        console.print_text(commit.text)
    console.print_text("\n")
    console.note(summary(answer.finish()))
