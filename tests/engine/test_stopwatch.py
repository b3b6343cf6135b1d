"""Laps add up and are never negative, whatever the clock does."""

from hypothesis import given
from hypothesis import strategies as st

from dspark.engine.stopwatch import Stopwatch


@given(times=st.lists(st.floats(0, 1e9), min_size=2, max_size=30), sorted_=st.booleans())
def test_no_lap_takes_time_back(times: list[float], sorted_: bool) -> None:
    clock = iter(sorted(times) if sorted_ else times)
    watch = Stopwatch(lambda: next(clock))
    before = 0.0
    for _ in times[1:]:
        watch.lap("draft")
        assert watch.seconds["draft"] >= before
        before = watch.seconds["draft"]


def test_a_coarse_clock_gives_laps_of_nothing() -> None:
    times = iter([0.0, 0.1, 12_345.7, *[12_345.7] * 3])
    watch = Stopwatch(lambda: next(times))
    watch.lap("draft")
    watch.lap("other")
    for _ in range(3):
        watch.lap("draft")
    assert watch.seconds["draft"] == 0.1
    assert watch.seconds["other"] == 12_345.7 - 0.1
