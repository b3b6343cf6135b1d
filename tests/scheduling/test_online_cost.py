"""Real rounds correct the table; a pause of the machine does not."""

from dataclasses import replace

import numpy as np
import pytest

from dspark.errors import ConfigError
from dspark.scheduling import CostTable, OnlineCost, RoundTiming

TABLE = CostTable((1, 8, 16), (0,), ((1.0, 1.2, 2.0),), (1, 4), (0.1, 0.2), overhead_seconds=0.1)


def timing(true: CostTable, tokens: int, drafting: int = 2) -> RoundTiming:
    verify = float(true.verify(tokens, tokens)[0])
    return RoundTiming(tokens, 0.0, drafting, verify, true.draft(drafting), true.overhead_seconds)


def test_converges_to_a_machine_of_another_speed() -> None:
    true = TABLE.scaled(np.array([1.5, 1.5, 3.0]), draft=0.5, overhead_seconds=0.3)
    online = OnlineCost(TABLE)
    random = np.random.default_rng(0)
    for tokens in random.choice([1, 8, 16], 3000):
        online.observe(timing(true, int(tokens)))
    assert online.table.verify_seconds[0] == pytest.approx(true.verify_seconds[0], rel=0.02)
    assert online.table.draft_seconds == pytest.approx(true.draft_seconds, rel=0.02)
    assert online.table.overhead_seconds == pytest.approx(0.3, rel=0.02)
    assert online.round_seconds(1, 1, 7, 0).plain == online.table.round_seconds(1, 1, 7, 0).plain


def test_sizes_that_never_ran_share_the_level() -> None:
    online = OnlineCost(TABLE)
    for _ in range(500):
        online.observe(timing(TABLE.scaled(np.full(3, 2.0), 1.0, 0.1), 8))
    one, eight, sixteen = np.array(online.table.verify_seconds[0]) / np.array(TABLE.verify_seconds[0])
    assert eight == pytest.approx(2, rel=0.01)
    assert 1.3 < one == sixteen < 2


def test_one_pause_moves_little() -> None:
    online = OnlineCost(TABLE, publish_every=1)
    online.observe(replace(timing(TABLE, 8), verify_seconds=60.0))
    assert max(online.table.verify_seconds[0]) < 2.0 * 1.04


def test_true_times_change_nothing() -> None:
    online = OnlineCost(TABLE, publish_every=1)
    for tokens in (1, 5, 8, 12, 16):
        online.observe(timing(TABLE, tokens))
    assert online.table.verify_seconds[0] == pytest.approx(TABLE.verify_seconds[0])


def test_publishes_now_and_then() -> None:
    online = OnlineCost(TABLE, publish_every=3)
    slow = TABLE.scaled(np.full(3, 2.0), 1.0, 0.1)
    for _ in range(2):
        online.observe(timing(slow, 8))
    assert online.table is TABLE
    online.observe(timing(slow, 8))
    assert online.table != TABLE


def test_padded_tables_correct_the_size_that_ran() -> None:
    online = OnlineCost(replace(TABLE, padded=True), publish_every=1)
    online.observe(replace(timing(replace(TABLE, padded=True), 3), verify_seconds=2.4))
    one, eight, sixteen = np.array(online.table.verify_seconds[0]) / np.array(TABLE.verify_seconds[0])
    assert eight > one == sixteen > 1


def test_impossible_timings_and_rates_are_refused() -> None:
    with pytest.raises(ConfigError, match="verify_seconds of a round is 0"):
        RoundTiming(1, 0.0, 1, 0.0, 0.1, 0.1)
    with pytest.raises(ConfigError, match="draft_seconds of a round is nan"):
        RoundTiming(1, 0.0, 1, 1.0, float("nan"), 0.1)
    with pytest.raises(ConfigError, match="rate is 0"):
        OnlineCost(TABLE, rate=0)
    for every in (0, -1):
        with pytest.raises(ConfigError, match="publish_every is"):
            OnlineCost(TABLE, publish_every=every)


def test_rows_of_as_many_requests_as_were_measured_teach_nothing_new() -> None:
    """What a table says of 8 rows of 8 requests is no error of the table."""
    table = CostTable((1, 8), (10,), ((1.0, 2.0),), (1,), (0.0,), spread=(1, 2), request_seconds=(0.1,))
    cost = OnlineCost(table, rate=0.5, publish_every=1)
    cost.observe(RoundTiming(8, 10, 0, 2.6, 0.0, 0.0, requests=8))
    assert cost.table.verify_seconds == pytest.approx(np.array([[1.0, 2.0]]))
    cost.observe(RoundTiming(8, 10, 0, 2.6, 0.0, 0.0))
    assert cost.table.verify_seconds[0][1] > 2.1
