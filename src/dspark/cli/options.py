"""Options that several verbs share, spelled once."""

from typing import Annotated, Literal

import typer

Dtype = Literal["auto", "float32", "bfloat16"]

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
        show_default=False,
    ),
]
DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", help="Arithmetic of the target; `auto` takes what is fast on this machine.")
]
SystemOption = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="System message of the chat.", show_default=False)
]

DEFAULT_TARGET = "smollm2-135m"
_ESCAPED_BRACKET = "\\["  # rich would read markup


def examples(*commands: str) -> str:
    """The epilogue of a verb's help: its commands, one a line."""
    return "\n".join(
        ("[bold]Examples[/bold]", *(f"  {command.replace('[', _ESCAPED_BRACKET)}" for command in commands))
    )
