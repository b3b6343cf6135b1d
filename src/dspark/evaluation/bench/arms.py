"""What is compared: ways to run the engine, by name."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dspark.errors import ConfigError
from dspark.scheduling.registry import SchedulerConfig

DraftedBy = Literal["none", "drafter", "mtp"]


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine's configuration: who drafts, `drafts` a round at most (None: gamma), and what decides how many count.

    `title` is for people. Only the engine's own default parks; baselines are what their names say.
    """

    name: str
    title: str
    drafted_by: DraftedBy
    scheduler: SchedulerConfig
    drafts: int | None = None


def _baseline(name: str, length: int | None = None) -> SchedulerConfig:
    return SchedulerConfig(name, length=length, park=False)


ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        arm.name: arm
        for arm in (
            Arm("plain", "plain", "none", _baseline("fixed", 0)),
            Arm("mtp-1", "MTP-1", "mtp", _baseline("fixed"), drafts=1),
            Arm("fixed", "fixed gamma", "drafter", _baseline("fixed")),
            Arm("threshold", "threshold", "drafter", _baseline("threshold")),
            Arm("algorithm-1", "Algorithm 1", "drafter", _baseline("prefix")),
            Arm("lagged", "lagged", "drafter", SchedulerConfig()),
        )
    }
)


def find_arms(names: Sequence[str]) -> list[Arm]:
    """The arms called `names`, each once, in this order.

    Raises:
        ConfigError: a name is unknown (the message names the nearest), or there is none.
    """
    for name in names:
        if name not in ARMS:
            near = difflib.get_close_matches(name, ARMS, n=1, cutoff=0.0)
            raise ConfigError(f"arm {name!r} is unknown; did you mean {near[0]!r}? Known are {', '.join(ARMS)}")
    if not names:
        raise ConfigError(f"no arm is named; choose among {', '.join(ARMS)}")
    return [ARMS[name] for name in dict.fromkeys(names)]
