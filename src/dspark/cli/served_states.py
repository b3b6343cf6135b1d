"""Options of `dspark train` for hidden states that a server computes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dspark.targets.native import NativeTarget
    from dspark.training.recipe import Recipe
    from dspark.training.served_states import ServedStates

_PANEL = "Hidden states from a server"

StatesOption = Annotated[
    str | None,
    typer.Option(
        "--states",
        metavar="URL",
        help="vLLM server that extracts hidden states. Default: the target runs here.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
StatesModelOption = Annotated[
    str | None,
    typer.Option(
        "--states-model",
        metavar="NAME",
        help="What the server calls the target. Default: as the recipe.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
StatesDirOption = Annotated[
    Path | None,
    typer.Option(
        "--states-dir",
        metavar="DIR",
        help="Where the server's shared_storage_path lies here. Default: the same path.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def served_states(
    local: "NativeTarget", plan: "Recipe", url: str, model: str | None, directory: Path | None
) -> "ServedStates":
    """States that the server at `url` computes, for a teacher whose weights `local` has."""
    import os

    from dspark.data.endpoint import Endpoint
    from dspark.data.vllm_states import VllmStates, extraction_layers
    from dspark.training.algorithms.registry import algorithm_named
    from dspark.training.served_states import ServedStates

    taps = algorithm_named(plan.algorithm).taps(plan.drafter)
    layers = extraction_layers(taps, local.info.num_layers)
    endpoint = Endpoint(url, os.environ.get("OPENAI_API_KEY", ""))
    return ServedStates(VllmStates(endpoint, model or plan.target, layers, directory), local)
