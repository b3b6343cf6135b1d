"""What a config.json says about layers and heads beyond DeepSpec's: its `ingredients`, and the window of attention."""

from dataclasses import asdict, fields
from typing import Any

from dspark.drafters.config import DrafterConfig
from dspark.drafters.formats.fields import Fields
from dspark.drafters.ingredients import Convolution, Experts, HyperConnections
from dspark.errors import FormatError

INGREDIENTS_KEY = "ingredients"
SECTIONS: dict[str, type[Convolution] | type[Experts] | type[HyperConnections]] = {
    "convolution": Convolution,
    "experts": Experts,
    "hyper_connections": HyperConnections,
}
INGREDIENTS = ("candidates", *SECTIONS)
"""Fields of a drafter's configuration that stand under `ingredients`, all of them optional."""

FULL, SLIDING = "full_attention", "sliding_attention"


def ingredients_json(config: DrafterConfig) -> dict[str, Any]:
    """The keys of config.json for `config`; a drafter of DeepSpec's kind gets those that DeepSpec writes."""
    window = config.sliding_window
    keys: dict[str, Any] = {
        "use_sliding_window": window is not None,
        "layer_types": [FULL if window is None else SLIDING] * config.num_hidden_layers,
    }
    if window is not None:
        keys["sliding_window"] = window
    found = {name: value for name, value in asdict(config).items() if name in INGREDIENTS and value is not None}
    return keys if config.is_deepspec else keys | {INGREDIENTS_KEY: found}


def parse_ingredients(source: Fields) -> dict[str, Any]:
    """The fields of the configuration that these keys set. Raises FormatError for a key that nothing here reads."""
    entries = source.object(INGREDIENTS_KEY)
    _refuse_unknown(entries, INGREDIENTS, INGREDIENTS_KEY)
    found: dict[str, Any] = {name: _section(entries, name) for name in SECTIONS if name in entries.entries}
    if "candidates" in entries.entries:
        found["candidates"] = entries.integer("candidates")
    return found | {"sliding_window": _window(source)}


def _section(entries: Fields, name: str) -> Convolution | Experts | HyperConnections:
    kind, section = SECTIONS[name], entries.object(name)
    keys = tuple(field.name for field in fields(kind))
    _refuse_unknown(section, keys, f"{INGREDIENTS_KEY}.{name}")
    return kind(**{key: section.integer(key) for key in keys})


def _window(source: Fields) -> int | None:
    slides = source.flag("use_sliding_window", False)
    expected = SLIDING if slides else FULL
    types = source.entries.get("layer_types") or []
    if not isinstance(types, list) or any(kind != expected for kind in types):
        raise FormatError(
            f"{source.source}: layer_types has {types!r}, use_sliding_window {slides} makes every layer {expected}"
        )
    return source.integer("sliding_window") if slides else None


def _refuse_unknown(section: Fields, known: tuple[str, ...], name: str) -> None:
    unknown = sorted(set(section.entries) - set(known))
    if unknown:
        raise FormatError(f"{section.source}: {name} has {unknown}, expected only {list(known)}")
