"""The survival models that can be fitted and saved, by the names that users and files give them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dspark.calibration.isotonic import IsotonicMap, IsotonicSurvival, fit_isotonic
from dspark.calibration.logistic import Feature, LogisticSurvival, fit_logistic
from dspark.calibration.records import RoundRecords
from dspark.calibration.signals import Source, SurvivalModel
from dspark.calibration.temperature import SequentialTemperature, fit_temperatures
from dspark.errors import ConfigError, FormatError


class MethodName(StrEnum):
    """How survival is calibrated."""

    STS = "sts"
    """Sequential temperature scaling, the paper's."""
    ISOTONIC = "isotonic"
    """A non-decreasing map per position."""
    LOGISTIC = "logistic"
    """Logistic regression on features of the draft distribution, and on the head's confidence where there is one."""


@dataclass(frozen=True, slots=True)
class Method:
    """Fits a survival model, turns it into JSON and back."""

    fit: Callable[[RoundRecords], SurvivalModel]
    read: Callable[[Mapping[str, Any]], SurvivalModel]


def method(name: MethodName) -> Method:
    """The method called `name`."""
    methods = {
        MethodName.STS: Method(fit_temperatures, _read_temperatures),
        MethodName.ISOTONIC: Method(fit_isotonic, _read_isotonic),
        MethodName.LOGISTIC: Method(fit_logistic, _read_logistic),
    }
    return methods[name]


def model_to_json(model: SurvivalModel) -> dict[str, Any]:
    """{"method": name, ...parameters}; ConfigError for a model that is not one of these methods."""
    match model:
        case SequentialTemperature(temperatures, source):
            return {"method": MethodName.STS.value, "source": source.value, "temperatures": list(temperatures)}
        case IsotonicSurvival(maps, source):
            points = [{"x": list(one.x), "y": list(one.y)} for one in maps]
            return {"method": MethodName.ISOTONIC.value, "source": source.value, "maps": points}
        case LogisticSurvival(features, weights):
            rows = [list(row) for row in weights]
            return {"method": MethodName.LOGISTIC.value, "features": [f.value for f in features], "weights": rows}
    raise ConfigError(f"{type(model).__name__} cannot be saved; expected one of {', '.join(MethodName)}")


def model_from_json(data: Mapping[str, Any]) -> SurvivalModel:
    """The model that `model_to_json` wrote; FormatError if a field is missing or unusable."""
    try:
        return method(MethodName(data["method"])).read(data)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise FormatError(f"a calibration model has a bad or missing field: {error}; calibrate again") from error


def _read_temperatures(data: Mapping[str, Any]) -> SurvivalModel:
    return SequentialTemperature(_numbers("temperatures", data["temperatures"]), _source(data))


def _read_isotonic(data: Mapping[str, Any]) -> SurvivalModel:
    maps = tuple(IsotonicMap(_numbers("x", one["x"]), _numbers("y", one["y"])) for one in data["maps"])
    return IsotonicSurvival(maps, _source(data))


def _read_logistic(data: Mapping[str, Any]) -> SurvivalModel:
    weights = tuple(_numbers("weights", row) for row in data["weights"])
    return LogisticSurvival(tuple(map(Feature, data["features"])), weights)


def _source(data: Mapping[str, Any]) -> Source:
    """What the model reads; files that do not say were fitted on a head's logits."""
    return Source(data.get("source", Source.CONFIDENCE))


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise ConfigError(f"{name} is {values!r}; expected a list of numbers")
    return tuple(map(float, values))
