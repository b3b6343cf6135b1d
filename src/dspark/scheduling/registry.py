"""Schedulers by name, so that a configuration can choose."""

import difflib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from dspark.errors import ConfigError
from dspark.scheduling.cost import CostModel
from dspark.scheduling.fixed import FixedLength
from dspark.scheduling.lagged import LaggedScheduler
from dspark.scheduling.park import Parked
from dspark.scheduling.prefix import PrefixScheduler
from dspark.scheduling.probe import ProbeSchedule
from dspark.scheduling.scheduler import Scheduler
from dspark.scheduling.threshold import StaticThreshold

WHOLE: tuple[tuple[type, ...], str] = ((Integral,), "a whole number")
NUMBER: tuple[tuple[type, ...], str] = ((Real,), "a number")
SETTINGS: Mapping[str, tuple[tuple[type, ...], str]] = MappingProxyType(
    {
        "name": ((str,), "the name of a scheduler"),
        "length": ((Integral, type(None)), "a whole number of drafts, or None for all"),
        "threshold": NUMBER,
        "lag": WHOLE,
        "least_gain": NUMBER,
        "keep": WHOLE,
        "park": ((bool,), "true or false"),
        "first_probe": WHOLE,
        "longest_probe": WHOLE,
    }
)
"""What each setting of `SchedulerConfig` is: types, and how a message says so."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Which scheduler, and its settings; those of other schedulers are ignored.

    `length` is that of "fixed" (None: gamma), `threshold` that of "threshold", `lag`, `least_gain` and
    `keep` belong to "lagged". `park` stops drafting while it does not pay; the first probe comes after `first_probe`
    rounds, at the latest one comes every `longest_probe`.

    Raises:
        ConfigError: a setting is of another type; the message names it. Values are checked by `build_scheduler`.
    """

    name: str = "lagged"
    length: int | None = None
    threshold: float = 0.5
    lag: int = 2
    least_gain: float = 0.02
    keep: int = 8
    park: bool = True
    first_probe: int = 16
    longest_probe: int = 256

    def __post_init__(self) -> None:
        for name, (kinds, expected) in SETTINGS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise ConfigError(f"{name} is {value!r}; expected {expected}")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> "SchedulerConfig":
        """The configuration in a parsed file.

        Raises:
            ConfigError: a key is unknown; the message names the nearest known one.
        """
        known = [field.name for field in fields(cls)]
        for key in settings:
            if key not in known:
                raise ConfigError(f"scheduler setting {key!r} is unknown{_nearest(key, known)}")
        return cls(**settings)

    @property
    def probes(self) -> ProbeSchedule:
        """When to probe."""
        return ProbeSchedule(self.first_probe, self.longest_probe)


Build = Callable[[SchedulerConfig, CostModel | None], Scheduler]


def _prefix(config: SchedulerConfig, cost: CostModel | None) -> Scheduler:
    if cost is None:
        _warn(config.name, "every draft is verified")
        return FixedLength()
    return PrefixScheduler(cost)


def _lagged(config: SchedulerConfig, cost: CostModel | None) -> Scheduler:
    if cost is None:
        _warn(config.name, "every draft is verified")
        return FixedLength()
    return LaggedScheduler(cost, config.lag, config.least_gain, config.probes, config.keep)


def _threshold(config: SchedulerConfig, cost: CostModel | None) -> Scheduler:
    if cost is None:
        _warn(config.name, "drafts are trimmed, and nobody knows whether that pays")
    return StaticThreshold(config.threshold)


def _fixed(config: SchedulerConfig, cost: CostModel | None) -> Scheduler:
    if cost is None and config.length:
        _warn(config.name, "drafts are trimmed, and nobody knows whether that pays")
    return FixedLength(config.length)


def _warn(name: str, consequence: str) -> None:
    warnings.warn(f"no cost table for scheduler {name!r}: {consequence}. Run a profile.", stacklevel=4)


SCHEDULERS: Mapping[str, Build] = MappingProxyType(
    {
        "fixed": _fixed,
        "threshold": _threshold,
        "prefix": _prefix,
        "lagged": _lagged,
    }
)


def build_scheduler(config: SchedulerConfig, cost: CostModel | None) -> Scheduler:
    """The scheduler that `config` asks for. Without a cost model nothing is trimmed by cost or parked.

    That is warned of: contract 3 has no trimming without a profile. "threshold" and a "fixed" length were asked for and
    trim all the same.

    Raises:
        ConfigError: the name is unknown (the message names the nearest), or a setting cannot be.
    """
    if config.name not in SCHEDULERS:
        raise ConfigError(f"scheduler {config.name!r} is unknown{_nearest(config.name, list(SCHEDULERS))}")
    scheduler = SCHEDULERS[config.name](config, cost)
    return Parked(scheduler, cost, probes=config.probes) if config.park and cost is not None else scheduler


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}? Known are {', '.join(known)}"
