"""Configuration chooses; mistakes are named; no model library is loaded."""

import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

from dspark.errors import ConfigError
from dspark.scheduling import (
    SCHEDULERS,
    Batch,
    CostTable,
    FixedLength,
    LaggedScheduler,
    Parked,
    PrefixScheduler,
    SchedulerConfig,
    StaticThreshold,
    build_scheduler,
)
from dspark.scheduling.registry import SETTINGS

TABLE = CostTable((1, 8), (0,), ((1.0, 2.0),), (1, 4), (0.1, 0.1))
KINDS = {"fixed": FixedLength, "threshold": StaticThreshold, "prefix": PrefixScheduler, "lagged": LaggedScheduler}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_name_builds_its_scheduler(name: str) -> None:
    assert isinstance(build_scheduler(SchedulerConfig(name, park=False), TABLE), KINDS[name])
    assert isinstance(build_scheduler(SchedulerConfig(name), TABLE), Parked)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_decides_a_round(name: str) -> None:
    scheduler = build_scheduler(SchedulerConfig(name, length=2), TABLE)
    lengths = scheduler.lengths(scheduler.plan(Batch(np.arange(3), 4)), np.full((3, 4), 0.9, dtype=np.float32))
    assert lengths.dtype == np.int64
    assert lengths.shape == (3,)
    assert lengths.min() >= 0
    assert lengths.max() <= 4


@pytest.mark.parametrize("name", ["prefix", "lagged"])
def test_without_a_cost_table_nothing_is_trimmed_and_that_is_said(name: str) -> None:
    with pytest.warns(UserWarning, match=f"no cost table for scheduler '{name}': every draft is verified"):
        scheduler = build_scheduler(SchedulerConfig(name), None)
    assert scheduler.plan(Batch(np.arange(2), 3)).full


@pytest.mark.parametrize("config", [SchedulerConfig("threshold"), SchedulerConfig("fixed", length=2)])
def test_trimming_without_a_cost_table_is_said(config: SchedulerConfig) -> None:
    with pytest.warns(UserWarning, match=f"no cost table for scheduler '{config.name}': drafts are trimmed"):
        build_scheduler(config, None)


def test_unknown_names_and_settings_are_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'laged' is unknown; did you mean 'lagged'"):
        build_scheduler(SchedulerConfig("laged"), TABLE)
    with pytest.raises(ConfigError, match="'treshold' is unknown; did you mean 'threshold'"):
        SchedulerConfig.from_mapping({"treshold": 0.5})
    assert SchedulerConfig.from_mapping({"name": "fixed", "length": 3}) == SchedulerConfig("fixed", 3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SchedulerConfig("fixed", length=-1), "length is -1"),
        (SchedulerConfig("threshold", threshold=1.5), "threshold is 1.5"),
        (SchedulerConfig("lagged", lag=0), "lag is 0"),
        (SchedulerConfig("lagged", least_gain=1.0), "least_gain is 1.0"),
        (SchedulerConfig("fixed", first_probe=9, longest_probe=3), "first is 9 and longest 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: SchedulerConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_scheduler(config, TABLE)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", None),
        ("length", 2.5),
        ("length", True),
        ("threshold", "0.5"),
        ("lag", "2"),
        ("lag", 1.5),
        ("least_gain", None),
        ("park", "no"),
        ("first_probe", 1.5),
        ("longest_probe", "256"),
    ],
)
def test_settings_of_another_type_are_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{setting} is {value!r}"):
        SchedulerConfig.from_mapping({setting: value})


def test_numbers_of_numpy_are_numbers() -> None:
    config = SchedulerConfig("fixed", length=np.int64(2), threshold=np.float32(0.5))  # type: ignore[arg-type]
    assert build_scheduler(config, TABLE).plan(Batch(np.arange(2), 3)).drafts


def test_every_setting_has_a_type() -> None:
    assert list(SETTINGS) == [field.name for field in fields(SchedulerConfig)]


def test_importing_loads_no_model_library() -> None:
    heavy = "{'torch', 'transformers', 'safetensors', 'tokenizers', 'pydantic', 'scipy'}"
    script = f"import sys, dspark.scheduling; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert result.stdout == "[]\n", result.stderr
