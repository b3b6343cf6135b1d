"""What `SchedulerConfig()` builds, over many rounds: never slower than plain decoding, and not parked where it pays."""

import numpy as np
import pytest

from dspark.scheduling import SchedulerConfig, build_scheduler
from tests.scheduling.serving import COST, Load

lives = pytest.mark.parametrize("life", [np.inf, 25.0], ids=["staying", "coming and going"])


@lives
@pytest.mark.parametrize(("mean", "least"), [(0.5, 1.04), (0.6, 1.14)])
def test_drafts_where_only_a_trimmed_width_pays(life: float, mean: float, least: float) -> None:
    """Full width, which the first rounds have, is slower than plain decoding."""
    alone = Load(mean, life).speedup(build_scheduler(SchedulerConfig(park=False), COST))
    default = Load(mean, life).speedup(build_scheduler(SchedulerConfig(), COST))
    assert alone >= least
    assert default >= 0.98 * alone


@lives
@pytest.mark.parametrize("park", [True, False], ids=["default", "not parked"])
def test_costs_little_where_no_width_pays(life: float, park: bool) -> None:
    """Newcomers that counted as confident would have every round drafted for them: 0.85."""
    assert Load(0.2, life).speedup(build_scheduler(SchedulerConfig(park=park), COST)) >= 0.97


@pytest.mark.parametrize("told", [None, 0.9], ids=["honest", "confident throughout"])
def test_returns_within_the_longest_probe(told: float | None) -> None:
    """Probes of the two that park must not wait for each other: 16, 32, ... of 16, 32, ... rounds."""
    config = SchedulerConfig(longest_probe=64)
    scheduler = build_scheduler(config, COST)
    before = [drafts for drafts, *_ in Load(0.1, told=told).rounds(scheduler, 400)]
    assert sum(before[100:]) <= 5
    after = [drafts for drafts, *_ in Load(0.9, told=told).rounds(scheduler, 100)]
    assert all(after[config.longest_probe + 4 :])
