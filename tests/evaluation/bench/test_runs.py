"""Runs in random order, resumed from a journal, and what is reported of them."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dspark.errors import CompatibilityError, ConfigError, FormatError
from dspark.evaluation.bench.arms import ARMS, find_arms
from dspark.evaluation.bench.arrivals import Poisson
from dspark.evaluation.bench.drive import drive
from dspark.evaluation.bench.figure import save_bench_figure
from dspark.evaluation.bench.load import Closed, Load, Open
from dspark.evaluation.bench.report import rows
from dspark.evaluation.bench.run_figures import RunFigures, run_figures
from dspark.evaluation.bench.runs import Done, RunJournal, Setting, make_runs, settings
from dspark.evaluation.bench.workload import Workload
from dspark.evaluation.bootstrap import median_interval
from dspark.types import SamplingParams
from tests.evaluation.bench.simulated import Clock, SimulatedCore

ARM_NAMES, LOADS = ["plain", "fixed", "lagged"], [Closed(1), Closed(8)]
COMMON = {"seed": 0, "target": "tiny"}


def figures(load: Load = LOADS[0], step: float = 1.0) -> RunFigures:
    clock = Clock()
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    workload = Workload(load, [[1, 2]], params, requests=4, warmup=load.users or 2)
    return run_figures(drive(SimulatedCore(clock, step, drafts=2, accepted=1), workload, 0, clock, clock.wait))


def done(arm: str, repeat: int, tokens_per_second: float, load: Load = LOADS[0]) -> Done:
    return Done(Setting(arm, load, repeat), replace(figures(), tokens_per_second=tokens_per_second))


def test_arms_at_one_load_run_side_by_side_in_an_order_of_their_own() -> None:
    todo = list(settings(ARM_NAMES, LOADS, repeats=40))
    each = Counter((s.arm, s.load) for together in todo for s in together)
    assert each == {(arm, load): 40 for arm in ARM_NAMES for load in LOADS}
    assert all(len({(s.load, s.repeat) for s in together}) == 1 for together in todo)
    assert all({s.arm, *s.others} == set(ARM_NAMES) and s.arm not in s.others for together in todo for s in together)
    orders = Counter(tuple(s.arm for s in together) for together in todo)
    assert len(orders) == 6  # all of them: 80 draws miss one with a chance of 3e-6
    assert list(settings(ARM_NAMES, LOADS, 40)) == todo != list(settings(ARM_NAMES, LOADS, 40, seed=1))


def test_more_repeats_leave_the_first_ones_as_they_were() -> None:
    assert list(settings(ARM_NAMES, LOADS, 5))[:4] == list(settings(ARM_NAMES, LOADS, 2))


def test_an_interrupted_benchmark_goes_on_where_it_stopped(tmp_path: Path) -> None:
    made: list[Setting] = []

    def run(together: Sequence[Setting]) -> list[RunFigures]:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.extend(together)
        return [figures(setting.load, step=len(made) + i) for i, setting in enumerate(together)]

    path, first = tmp_path / "new" / "runs.jsonl", list[list[Done]]()
    with pytest.raises(KeyboardInterrupt):
        first.extend(make_runs(settings(ARM_NAMES, LOADS, 1), run, RunJournal(path, COMMON)))
    ((*done,),) = first
    assert [one.setting for one in done] == made
    again = RunJournal(path, COMMON)
    assert [again.find(one.setting) for one in done] == [one.figures for one in done]
    made.clear()
    second = list(make_runs(settings(ARM_NAMES, LOADS, 1), run, again))
    assert second[0] == done
    assert len({setting.load for setting in made}) == 1
    assert len(path.read_text().splitlines()) == 1 + 6


def test_where_one_run_is_missing_all_beside_it_are_made_again(tmp_path: Path) -> None:
    """Killed while it wrote the third of three: the first two were not measured beside what would follow."""
    made: list[Setting] = []

    def run(together: Sequence[Setting]) -> list[RunFigures]:
        made.extend(together)
        return [figures(setting.load, step=len(made)) for setting in together]

    path = tmp_path / "runs.jsonl"
    (first,) = make_runs(settings(ARM_NAMES, LOADS[:1], 1), run, RunJournal(path, COMMON))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:9])
    made *= 2
    (second,) = make_runs(settings(ARM_NAMES, LOADS[:1], 1), run, RunJournal(path, COMMON))
    assert len(made) == 9
    assert [one.setting for one in second] == [one.setting for one in first]
    assert [one.figures for one in second] != [one.figures for one in first]
    again = RunJournal(path, COMMON)
    assert [again.find(one.setting) for one in second] == [one.figures for one in second]


def test_runs_beside_others_are_other_runs(tmp_path: Path) -> None:
    """What ran beside `fixed` cannot be compared with what ran beside `lagged`."""
    made: list[Setting] = []

    def run(together: Sequence[Setting]) -> list[RunFigures]:
        made.extend(together)
        return [figures(setting.load, step=len(made)) for setting in together]

    for others in ("lagged", "fixed", "lagged"):
        list(make_runs(settings(["plain", others], LOADS[:1], 1), run, RunJournal(tmp_path / "runs", COMMON)))
    assert len(made) == 4


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    RunJournal(tmp_path / "a", COMMON)
    with pytest.raises(CompatibilityError, match="another seed, threads"):
        RunJournal(tmp_path / "a", COMMON | {"seed": 1, "threads": 2})
    for text in ("x\n", "{}\n", '{"settings": {}}\n{"run": []}\n', "[]\n"):
        (tmp_path / "b").write_text(text)
        with pytest.raises(FormatError, match="no journal of a benchmark"):
            RunJournal(tmp_path / "b", COMMON)


def test_rows_have_the_agreed_shape() -> None:
    clock_bound = [Done(one, figures(one.load)) for together in settings(ARM_NAMES, LOADS, 2) for one in together]
    found = [row.as_json() for row in rows(clock_bound)]
    assert [(row["arm"], row["concurrency"]) for row in found] == [(a, n) for n in (1, 8) for a in ARM_NAMES]
    assert {"arm", "concurrency", "tokens_per_second", "user_tokens_per_second_p50", "verified_per_request", "tau"} <= {
        *found[0]
    }
    assert found[0]["tau"] == 2.0
    assert found[0]["intervals"]["tau"] == [2.0, 2.0]
    assert found[0]["repeats"] == 2
    assert json.loads(json.dumps(found)) == found
    (row,) = rows([Done(Setting("plain", Open(Poisson(2.5)), 0), figures())])
    assert (row.as_json()["concurrency"], row.as_json()["rate"], row.as_json()["load"]) == (None, 2.5, "poisson")


def test_ratios_are_paired_within_repeats() -> None:
    """The machine gets slower from repeat to repeat; the ratio stays 2 and shows no spread."""
    speeds = [10.0, 7.0, 4.0]
    made = [done("plain", i, speed) for i, speed in enumerate(speeds)]
    made += [done("lagged", i, 2 * speed) for i, speed in enumerate(speeds)]
    plain, lagged = rows(made)
    assert asdict(lagged.over["plain"]) == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert plain.over["lagged"].median == 0.5
    estimate = plain.figures["tokens_per_second"]
    assert estimate is not None
    assert (estimate.median, estimate.low, estimate.high) == (7.0, 4.0, 10.0)


def test_arms_without_a_common_repeat_have_no_ratio_and_no_run_no_row() -> None:
    plain, lagged = rows([done("plain", 0, 1.0), done("lagged", 1, 1.0)])
    assert plain.over == lagged.over == {}
    assert rows([]) == []
    assert len(rows([done("plain", 0, 1.0), done("lagged", 0, 1.0, LOADS[1])])) == 2


def test_an_interval_of_the_median_covers_it() -> None:
    values = [float(i) for i in range(1, 100)]
    low, high = median_interval(values)
    assert 35 < low < 50 < high < 65  # about 50 +- 1.96 * 99 * 0.5 / sqrt(99)
    assert median_interval([3.0]) == (3.0, 3.0)


def test_arms_are_found_by_name() -> None:
    assert list(ARMS) == ["plain", "mtp-1", "fixed", "threshold", "algorithm-1", "lagged"]
    assert [arm.name for arm in find_arms(["lagged", "plain", "lagged"])] == ["lagged", "plain"]
    with pytest.raises(ConfigError, match="'fixd' is unknown; did you mean 'fixed'"):
        find_arms(["fixd"])
    with pytest.raises(ConfigError, match="no arm"):
        find_arms([])


def test_only_the_default_parks() -> None:
    assert [name for name, arm in ARMS.items() if arm.scheduler.park] == ["lagged"]


@pytest.mark.parametrize("loads", [LOADS, [Open(Poisson(0.5)), Open(Poisson(2.0))]], ids=["closed", "open"])
def test_the_figure_is_drawn(tmp_path: Path, loads: list[Load]) -> None:
    made = [Done(one, figures(one.load)) for together in settings(ARM_NAMES, loads, 1) for one in together]
    save_bench_figure(rows(made), tmp_path / "bench.png", "title")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
