"""Options of verbs that may ask an OpenAI-compatible server, spelled once."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

Api = Literal["completions", "chat"]
_ENDPOINT = "Endpoint"

EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="OpenAI-compatible server. Default: the built-in engine.",
        rich_help_panel=_ENDPOINT,
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="What the endpoint calls the target. Default: as --target.",
        rich_help_panel=_ENDPOINT,
        show_default=False,
    ),
]
ApiOption = Annotated[
    Api,
    typer.Option(
        "--api",
        help="`completions` sends tokens of our own template; `chat` leaves the template to the server.",
        rich_help_panel=_ENDPOINT,
    ),
]
TokenIdsOption = Annotated[
    bool,
    typer.Option(
        "--token-ids/--no-token-ids",
        help="Ask for the exact ids of answers; for servers that refuse unknown fields, do not.",
        rich_help_panel=_ENDPOINT,
    ),
]
ApiKeyEnvOption = Annotated[
    str,
    typer.Option(
        "--api-key-env", metavar="NAME", help="Environment variable that holds the API key.", rich_help_panel=_ENDPOINT
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.001, help="Longest wait for an answer.", rich_help_panel=_ENDPOINT
    ),
]
AttemptsOption = Annotated[
    int,
    typer.Option(
        "--attempts", metavar="N", min=1, help="Tries per answer, waiting longer each time.", rich_help_panel=_ENDPOINT
    ),
]


@dataclass(frozen=True, slots=True)
class EndpointFlags:
    """How an endpoint is asked; without a `url` the built-in engine answers."""

    url: str | None
    model: str | None
    api: Api
    token_ids: bool
    api_key_env: str
    timeout: float
    attempts: int
