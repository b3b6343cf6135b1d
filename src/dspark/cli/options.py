"""Options that several verbs share, spelled once."""

import secrets
from typing import Annotated, Literal

import typer

Dtype = Literal["auto", "bf16", "fp32", "int8"]

DEFAULT_TARGET = "smollm2-135m"
_SAMPLING, _DRAFTING = "Sampling", "Drafting"

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.", show_default=False)
]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target", "-t", metavar="NAME", help="Embedded name, Hugging Face directory, GGUF file or org/name."
    ),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        "-d",
        metavar="DIR",
        help="Drafter directory, or `none` to decode plainly. Default: the one shipped for the target.",
        rich_help_panel=_DRAFTING,
        show_default=False,
    ),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        "--dtype",
        help="Weights of the target: `auto` is bf16, computed as is fastest here; int8 is another, rounded target.",
    ),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="NAME", help="Where models live: cpu, cuda or cuda:1 (not yet run on a GPU).")
]
SystemOption = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="System message of the chat.", show_default=False)
]

MaxTokensOption = Annotated[
    int, typer.Option("--max-tokens", "-n", metavar="N", help="Longest answer, in tokens.", rich_help_panel=_SAMPLING)
]
TemperatureOption = Annotated[
    float,
    typer.Option("--temperature", "-T", metavar="T", help="0 takes the most likely token.", rich_help_panel=_SAMPLING),
]
TopKOption = Annotated[
    int,
    typer.Option("--top-k", metavar="K", help="Keep the K likeliest tokens; 0 keeps all.", rich_help_panel=_SAMPLING),
]
TopPOption = Annotated[
    float,
    typer.Option(
        "--top-p", metavar="P", help="Keep the likeliest tokens of total probability P.", rich_help_panel=_SAMPLING
    ),
]
MinPOption = Annotated[
    float,
    typer.Option(
        "--min-p",
        metavar="P",
        help="Keep tokens at least P times as likely as the likeliest.",
        rich_help_panel=_SAMPLING,
    ),
]
RepetitionPenaltyOption = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        metavar="R",
        help="Divide positive logits of seen tokens; 1 is off.",
        rich_help_panel=_SAMPLING,
    ),
]
PresencePenaltyOption = Annotated[
    float,
    typer.Option(
        "--presence-penalty", metavar="X", help="Subtract once from tokens already written.", rich_help_panel=_SAMPLING
    ),
]
FrequencyPenaltyOption = Annotated[
    float,
    typer.Option(
        "--frequency-penalty",
        metavar="X",
        help="Subtract for each time a token was written.",
        rich_help_panel=_SAMPLING,
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Makes a sampled answer repeatable. Default: a fresh one.",
        rich_help_panel=_SAMPLING,
        show_default=False,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="End the answer before this text; may be given again.",
        rich_help_panel=_SAMPLING,
        show_default=False,
    ),
]
IgnoreEosOption = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the target's own end token.", rich_help_panel=_SAMPLING)
]
MaxDraftTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-draft-tokens",
        metavar="N",
        help="Drafts of a round at most. Default: as many as pay on this machine; gamma in `eval`.",
        rich_help_panel=_DRAFTING,
        show_default=False,
    ),
]
LookupOption = Annotated[
    bool | None,
    typer.Option(
        "--lookup/--no-lookup",
        help="Copy drafts from where the text repeats itself. Default: if it pays beside a drafter; off in `eval`.",
        rich_help_panel=_DRAFTING,
        show_default=False,
    ),
]
BlockVerificationOption = Annotated[
    bool,
    typer.Option(
        "--block-verification",
        help="Judge drafts jointly: same distribution, never fewer accepted.",
        rich_help_panel=_DRAFTING,
    ),
]


def seed_or_fresh(seed: int | None) -> int:
    """The seed asked for, or one that nobody can foresee."""
    return secrets.randbits(32) if seed is None else seed


def examples(*commands: str) -> str:
    """The epilogue of a verb's help: its commands, one a line."""
    return "\n".join(
        ("[bold]Examples[/bold]", *(f"  {command.replace('[', _ESCAPED_BRACKET)}" for command in commands))
    )


_ESCAPED_BRACKET = "\\["  # rich would read markup
