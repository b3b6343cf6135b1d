"""A cost table is a value: jagged points survive, holes are refused, files round-trip."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import CompatibilityError, ConfigError, FormatError
from dspark.scheduling import CostTable
from dspark.scheduling.cost_table import flat_range

TABLE = CostTable(
    tokens=(1, 2, 4, 8),
    contexts=(0, 100),
    verify_seconds=((1.0, 3.0, 2.0, 4.0), (2.0, 6.0, 4.0, 5.0)),
    requests=(1, 4),
    draft_seconds=(0.1, 0.4),
    overhead_seconds=0.05,
    noise=0.1,
    subject="a machine",
)


def test_measured_points_are_kept_and_the_rest_is_linear() -> None:
    assert TABLE.verify(1, 8) == pytest.approx([1, 3, 2.5, 2, 2.5, 3, 3.5, 4])


def test_padded_batches_cost_the_next_size() -> None:
    assert replace(TABLE, padded=True).verify(1, 8) == pytest.approx([1, 3, 2, 2, 4, 4, 4, 4])
    assert replace(TABLE, padded=True).draft(2) == 0.4


def test_times_grow_in_proportion_beyond_the_last_size() -> None:
    assert TABLE.verify(8, 10) == pytest.approx([4, 4.5, 5])
    assert TABLE.verify(16, 17) == pytest.approx([8, 8.5])
    assert TABLE.draft(8) == pytest.approx(0.8)


def test_context_is_linear_between_and_beyond_but_never_cheaper_when_longer() -> None:
    assert TABLE.verify(1, 2, context=50) == pytest.approx([1.5, 4.5])
    assert TABLE.verify(1, 2, context=200) == pytest.approx([3, 9])
    falling = replace(TABLE, verify_seconds=((2.0, 2.0, 2.0, 2.0), (1.0, 3.0, 2.0, 2.0)))
    assert falling.verify(1, 2, context=200) == pytest.approx([1, 4])


def test_a_round_is_draft_and_verify_and_overhead() -> None:
    seconds = TABLE.round_seconds(requests=2, drafting=1, most=2, context=0)
    assert seconds.plain == pytest.approx(3.05)
    assert seconds.drafted == pytest.approx([3.15, 2.65, 2.15])
    assert TABLE.draft(0) == 0
    assert seconds.resolved


SPREAD = replace(TABLE, contexts=(10, 100), spread=(1, 1, 2, 4), request_seconds=(0.1, 1.0))


def test_another_request_costs_what_it_costs_at_equal_rows() -> None:
    """Measured: 8 rows of 4 requests, 3 rows (between 2 and 4) of one and a half."""
    assert SPREAD.verify(8, 8, 10, requests=4) == SPREAD.verify(8, 8, 10) == pytest.approx([4.0])
    assert SPREAD.verify(8, 8, 10, requests=8) == pytest.approx([4.4])
    assert SPREAD.verify(8, 8, 10, requests=1) == pytest.approx([3.7])
    assert SPREAD.verify(3, 3, 10, requests=3) == pytest.approx([2.5 + 0.15])
    assert SPREAD.verify(4, 4, 100, requests=4) == pytest.approx([4.0 + 2.0])
    assert SPREAD.verify(8, 8, 55, requests=8) == pytest.approx([4.5 + 4 * 0.55])
    assert SPREAD.verify(8, 8, 200, requests=5) == pytest.approx(SPREAD.verify(8, 8, 200) + 2.0)


def test_beyond_the_last_size_requests_grow_with_rows() -> None:
    assert SPREAD.verify(16, 16, 10, requests=8) == pytest.approx([8.0])
    assert SPREAD.verify(7, 16, 10, requests=10)[-1] == pytest.approx(8.0 + 2 * 0.1)


def test_a_round_is_that_of_its_requests() -> None:
    seconds = SPREAD.round_seconds(requests=4, drafting=4, most=4, context=10)
    assert seconds.plain == pytest.approx(2.0 + 2 * 0.1 + 0.05)
    assert seconds.drafted[-1] == pytest.approx(4.0 + 0.4 + 0.05)


def test_few_requests_cost_no_less_than_half_of_what_was_measured() -> None:
    absurd = replace(SPREAD, request_seconds=(9.0, 9.0))
    assert absurd.verify(8, 8, 10, requests=1) == pytest.approx([2.0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spread": ()}, "belong together"),
        ({"request_seconds": ()}, "belong together"),
        ({"spread": (1, 1)}, "2 entries for 4 sizes"),
        ({"spread": (1, 3, 3, 3)}, "a row for each"),
        ({"spread": (0, 1, 1, 1)}, "1 request or more"),
        ({"request_seconds": (0.1,)}, "1 entries for 2 contexts"),
        ({"request_seconds": (0.1, -1.0)}, "request_seconds at 100"),
    ],
)
def test_spreads_that_cannot_be_are_refused(change: dict[str, tuple[float, ...]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(SPREAD, **change)


def test_a_spread_survives_files_and_scaling() -> None:
    assert CostTable.from_json(json.loads(json.dumps(SPREAD.to_json()))) == SPREAD
    assert SPREAD.scaled(np.ones(4), 1.0, 0.0) == replace(SPREAD, overhead_seconds=0.0)
    assert SPREAD.scaled(np.array([1.0, 4.0, 4.0, 1.0]), 1.0, 0.0).request_seconds == pytest.approx((0.2, 2.0))


def resolved(table: CostTable, requests: int, most: int, context: float = 0) -> bool:
    return table.round_seconds(requests, requests, most, context).resolved


def test_differences_within_noise_are_not_resolved() -> None:
    """From 2 to 4 tokens it falls from 3 to 2, by half: two points."""
    assert resolved(replace(TABLE, noise=0.5 / flat_range(2) + 0.01), 2, 2) is False
    assert resolved(replace(TABLE, noise=0.5 / flat_range(2) - 0.01), 2, 2) is True
    assert resolved(replace(TABLE, noise=0.3), 4, 0) is False
    assert resolved(replace(TABLE, noise=0.0), 4, 0) is True


def test_more_points_must_differ_by_more() -> None:
    noise, grid = 0.1, (1, 2, 3, 4, 5, 6, 7, 8)
    between = 1 + noise * (flat_range(2) + flat_range(8)) / 2
    dense = CostTable(grid, (0,), ((1.0,) * 7 + (between,),), (1,), (0.0,), noise=noise)
    sparse = CostTable((1, 8), (0,), ((1.0, between),), (1,), (0.0,), noise=noise)
    assert not resolved(dense, 1, 7)
    assert resolved(sparse, 1, 7)
    assert resolved(dense, 7, 1)  # two points of the dense one
    assert [flat_range(n) for n in (2, 8, 22)] == pytest.approx([1.62, 1.87, 2.06], abs=0.01)


def test_points_beside_those_asked_for_count_where_times_are_read_between_them() -> None:
    noise = 0.1
    rise = 1 + noise * (flat_range(2) + flat_range(4)) / 2
    table = CostTable((1, 4, 6, 9), (0,), ((1.0, 1.0, rise, rise),), (1,), (0.0,), noise=noise)
    assert resolved(table, 4, 2)
    assert not resolved(table, 3, 4)


def test_what_was_not_measured_is_no_evidence() -> None:
    flat = CostTable((1, 32, 64), (0, 100), ((1.0, 1.0, 1.01), (1.0, 1.01, 1.02)), (1, 128), (0.0, 0.0), noise=0.05)
    for requests, most in ((1, 128), (32, 512), (64, 64), (65, 64), (100, 200)):
        assert not resolved(flat, requests, most)
    assert not resolved(flat, 1, 63, context=1e6)
    steep = replace(flat, verify_seconds=((1.0, 1.5, 2.0), (1.0, 2.0, 3.0)))
    assert resolved(steep, 32, 512)
    assert not resolved(steep, 65, 512)
    assert resolved(steep, 1, 63, context=1e6)


def test_more_requests_than_were_timed_drafting_are_no_ground_for_trimming() -> None:
    """Four draft in 0.4 s, and eight can do it in twice that, one half after the other."""
    within, beyond = (TABLE.round_seconds(n, n, 4, 0) for n in (4, 5))
    assert (within.measured, within.resolved) == (True, True)
    assert (beyond.measured, beyond.resolved) == (False, False)
    free = replace(TABLE, draft_seconds=(0.0, 0.0)).round_seconds(5, 5, 4, 0)
    assert (free.measured, free.resolved) == (True, True)
    assert TABLE.round_seconds(5, 2, 4, 0).measured  # the others do not draft


def test_steps_per_second_of_the_paper() -> None:
    table = CostTable.from_steps_per_second({2: 0.5, 1: 1.0})
    assert (table.tokens, table.verify_seconds) == ((1, 2), ((1.0, 2.0),))
    assert table.round_seconds(1, 1, 1, 0).drafted == pytest.approx([1, 2])


@pytest.mark.parametrize("steps", [0, -1.0, float("nan"), float("inf")])
def test_steps_per_second_that_cannot_be_are_refused(steps: float) -> None:
    with pytest.raises(ConfigError, match="steps per second at 2 tokens"):
        CostTable.from_steps_per_second({1: 10, 2: steps})
    with pytest.raises(ConfigError, match="tokens is"):
        CostTable.from_steps_per_second({})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"verify_seconds": ((1.0, np.nan, 2.0, 4.0), (2.0, 6.0, 4.0, 5.0))},
            "verify_seconds at 2 tokens is nan",
        ),
        ({"verify_seconds": ((1.0, 0.0, 2.0, 4.0), (2.0, 6.0, 4.0, 5.0))}, "verify_seconds at 2 tokens is 0.0"),
        ({"verify_seconds": ((1.0, 3.0, 4.0), (2.0, 6.0, 4.0, 5.0))}, "verify_seconds has 3 entries for 4 tokens"),
        ({"verify_seconds": ((1.0, 3.0, 2.0, 4.0),)}, "verify_seconds has 1 rows for 2 contexts"),
        ({"draft_seconds": (0.1, -0.4)}, "draft_seconds at 4 requests is -0.4"),
        ({"tokens": (1, 4, 2, 8)}, r"tokens is \(1, 4, 2, 8\)"),
        ({"tokens": ()}, "tokens is"),
        ({"requests": (0, 4)}, "requests is"),
        ({"overhead_seconds": -1.0}, "overhead_seconds is -1.0"),
        ({"noise": float("nan")}, "noise is nan"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TABLE, **change)  # type: ignore[arg-type]


def test_file_round_trip(tmp_path: Path) -> None:
    TABLE.save(tmp_path / "cost.json")
    assert CostTable.load(tmp_path / "cost.json", subject="a machine") == TABLE
    with pytest.raises(CompatibilityError, match="'a machine', not on 'another'"):
        CostTable.load(tmp_path / "cost.json", subject="another")


seconds = st.floats(1e-9, 1e3)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=6), st.booleans())
def test_json_round_trip(rows: list[tuple[float, float]], padded: bool) -> None:
    tokens = tuple(range(1, len(rows) + 1))
    curve = tuple(a for a, _ in rows)
    table = CostTable(tokens, (5,), (curve,), tokens, tuple(b for _, b in rows), padded=padded)
    assert CostTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    with pytest.raises(FormatError, match="cannot be read"):
        CostTable.load(path)
    for content, message in (("{", "cannot be read"), ("[]", "format is 'list'"), ('{"format": "x"}', "format is 'x'")):
        path.write_text(content)
        with pytest.raises(FormatError, match=message):
            CostTable.load(path)


def test_json_with_holes_or_other_fields_is_refused() -> None:
    tree = TABLE.to_json()
    with pytest.raises(FormatError, match="sppeed"):
        CostTable.from_json({**tree, "sppeed": 1})
    del tree["tokens"]
    with pytest.raises(FormatError, match="tokens"):
        CostTable.from_json(tree)
    holes = [[1.0, None, 2.0, 4.0], [2.0, 6.0, 4.0, 5.0]]
    with pytest.raises(ConfigError, match="verify_seconds at 2 tokens is nan"):
        CostTable.from_json({**TABLE.to_json(), "verify_seconds": holes})


def test_scaling_touches_what_it_names() -> None:
    scaled = TABLE.scaled(np.array([2.0, 1.0, 1.0, 1.0]), draft=3.0, overhead_seconds=1.0)
    assert scaled.verify_seconds == ((2.0, 3.0, 2.0, 4.0), (4.0, 6.0, 4.0, 5.0))
    assert scaled.draft_seconds == pytest.approx((0.3, 1.2))
    assert (scaled.overhead_seconds, scaled.subject) == (1.0, "a machine")
