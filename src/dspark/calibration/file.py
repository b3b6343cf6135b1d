"""`calibration.json` beside a drafter's weights: what was fitted, and what it belongs to (contract 5)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dspark.calibration.methods import model_from_json, model_to_json
from dspark.calibration.records import DraftMode
from dspark.calibration.signals import SurvivalModel
from dspark.errors import CompatibilityError, ConfigError, FormatError

FILE_NAME = "calibration.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Pair:
    """The drafter and target that survivals were measured with, and the chat template of the prompts.

    Other weights, another template or another gamma mean other chances. Raises ConfigError for an empty hash: what
    has no identity would match everything else that has none.
    """

    drafter_hash: str
    target_hash: str
    template_hash: str
    gamma: int

    def __post_init__(self) -> None:
        for name in ("drafter_hash", "target_hash", "template_hash"):
            if not getattr(self, name):
                raise ConfigError(
                    f"{name} is empty, and a calibration must belong to something; use a drafter and target loaded "
                    "from files, with a chat template"
                )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How drafts are drawn and judged; each way has its own law of acceptance and so its own calibration."""

    draft_mode: DraftMode
    temperature: float
    rule: str = "TokenRejection"


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted model and what it belongs to. `report` is a summary for people, on prompts it was not fitted on."""

    pair: Pair
    sampling: Sampling
    model: SurvivalModel
    report: Mapping[str, Any] = field(default_factory=dict)


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Write `calibration` into `path`, beside those of other samplings of the same pair.

    What another drafter, target, template or gamma left in the file is replaced, as is a file that cannot be read.
    """
    entries = [entry for entry in _kept_entries(path, calibration.pair) if _sampling(entry) != calibration.sampling]
    entries.append(_entry(calibration))
    entries.sort(key=lambda entry: (entry["draft_mode"], entry["temperature"], entry["rule"]))
    text = json.dumps({"version": VERSION, **asdict(calibration.pair), "entries": entries}, indent=2)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def load_calibration(path: Path, pair: Pair, sampling: Sampling) -> Calibration:
    """The calibration in `path` for this pair and sampling.

    Raises:
        FormatError: the file is missing or damaged.
        CompatibilityError: it was made for something else; the message says which field differs.
    """
    data = _own(path, pair)
    for entry in data["entries"]:
        if _sampling(entry) == sampling:
            return _calibration(entry, path, pair)
    raise CompatibilityError(f"{path} {_missing(data, sampling)}; run `dspark calibrate` with these settings")


def load_calibrations(path: Path, pair: Pair) -> tuple[Calibration, ...]:
    """All calibrations in `path` for this pair, errors as in `load_calibration`."""
    return tuple(_calibration(entry, path, pair) for entry in _own(path, pair)["entries"])


def _own(path: Path, pair: Pair) -> dict[str, Any]:
    """The file's object, if it is for `pair`."""
    data = _read(path)
    for name, wanted in asdict(pair).items():
        if data[name] != wanted:
            raise CompatibilityError(
                f"{path} was made for {name} {_short(data[name])}, but this is {_short(wanted)}; "
                "run `dspark calibrate` with this drafter and target"
            )
    return data


def _calibration(entry: Mapping[str, Any], path: Path, pair: Pair) -> Calibration:
    return Calibration(pair, _sampling(entry), _model(entry, path, pair.gamma), entry.get("report", {}))


def _missing(data: Mapping[str, Any], sampling: Sampling) -> str:
    """What about `sampling` no entry has: the first field, in order, that would leave none."""
    entries = [asdict(_sampling(entry)) for entry in data["entries"]]
    for name, wanted in asdict(sampling).items():
        found = sorted({_say(entry[name]) for entry in entries})
        entries = [entry for entry in entries if entry[name] == wanted]
        if not entries:
            return f"holds no calibration for {name} {_say(wanted)} (only {', '.join(found) or 'nothing at all'})"
    return "holds no calibration"


def _say(value: Any) -> str:
    return value.name.lower() if isinstance(value, DraftMode) else str(value)


def _model(entry: Mapping[str, Any], path: Path, gamma: int) -> SurvivalModel:
    if "model" not in entry:
        raise FormatError(f"{path} has an entry without `model`; run `dspark calibrate` again")
    model = model_from_json(entry["model"])
    if model.gamma != gamma:
        raise FormatError(f"{path} has a model of {model.gamma} positions for gamma {gamma}; calibrate again")
    return model


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else str(value)


def _entry(calibration: Calibration) -> dict[str, Any]:
    sampling = asdict(calibration.sampling) | {"draft_mode": calibration.sampling.draft_mode.name.lower()}
    return {**sampling, "model": model_to_json(calibration.model), "report": dict(calibration.report)}


def _sampling(entry: Mapping[str, Any]) -> Sampling:
    return Sampling(DraftMode[entry["draft_mode"].upper()], float(entry["temperature"]), str(entry["rule"]))


def _kept_entries(path: Path, pair: Pair) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        data = _read(path)
    except FormatError:
        return []
    return list(data["entries"]) if all(data[name] == value for name, value in asdict(pair).items()) else []


def _read(path: Path) -> dict[str, Any]:
    """The object in the file, its fields present and its samplings readable."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise FormatError(f"{path} has version {data['version']}, expected {VERSION}; calibrate again")
        _ = Pair(*(data[field.name] for field in fields(Pair))), [_sampling(entry) for entry in data["entries"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise FormatError(f"{path} is not a calibration ({error!r}); run `dspark calibrate` again") from error
    return data
