"""Engines that take turns: each is measured as if alone, and whatever slows the machine down slows them all down."""

import pytest

from dspark.errors import EngineError
from dspark.evaluation.bench.arrivals import Poisson
from dspark.evaluation.bench.drive import drive
from dspark.evaluation.bench.load import Closed, Open
from dspark.evaluation.bench.run_figures import RunFigures, run_figures
from dspark.evaluation.bench.trace import Run
from dspark.evaluation.bench.turns import TURN_SECONDS, TurnClock, drive_in_turns
from dspark.evaluation.bench.workload import Workload
from dspark.types import SamplingParams
from tests.evaluation.bench.simulated import Clock, SimulatedCore

PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)
PROMPTS = [[1] * n for n in (3, 5, 8)]
CLOSED = Workload(Closed(4), PROMPTS, PARAMS, requests=40, warmup=4)
STEPS = (0.04, 0.1, 0.9)


class TiringClock(Clock):
    """The first half minute of every minute, all takes three times as long."""

    def wait(self, seconds: float) -> None:
        super().wait(3 * seconds if self.now % 60 < 30 else seconds)


def together(clock: Clock, steps: tuple[float, ...] = STEPS, workload: Workload = CLOSED) -> list[Run]:
    pairs = [(SimulatedCore(clock, step=step), TurnClock(clock)) for step in steps]
    return drive_in_turns(pairs, workload, 0, clock.wait)


def speeds(runs: list[Run]) -> list[float]:
    return [run_figures(run).tokens_per_second for run in runs]


@pytest.mark.parametrize("workload", [CLOSED, Workload(Open(Poisson(0.5)), PROMPTS, PARAMS, 60, 10)])
def test_each_is_measured_as_if_it_were_alone(workload: Workload) -> None:
    def alone(step: float) -> RunFigures:
        clock = Clock()
        return run_figures(drive(SimulatedCore(clock, step=step), workload, 0, clock, clock.wait))

    for step, run in zip(STEPS, together(Clock(), workload=workload), strict=True):
        figures, expected = run_figures(run), alone(step)
        assert figures.tokens_per_second == pytest.approx(expected.tokens_per_second, rel=1e-3)
        assert figures.first_token_seconds_p50 == pytest.approx(expected.first_token_seconds_p50, rel=1e-3)
        assert (figures.steps, figures.requests) == (expected.steps, expected.requests)


def test_what_slows_the_machine_down_leaves_ratios_alone() -> None:
    """One after the other, equal engines are far apart here; turn by turn, they keep within 2 %."""
    clock = TiringClock()
    one_by_one = [run_figures(drive(SimulatedCore(clock, step=0.1), CLOSED, 0, clock, clock.wait)) for _ in range(4)]
    rates = [figures.tokens_per_second for figures in one_by_one]
    assert max(rates) / min(rates) > 1.3
    slow, fast = speeds(together(TiringClock(), (0.1, 0.05)))
    assert fast / slow == pytest.approx(2.0, rel=0.02)


def test_nobody_gets_ahead_by_more_than_a_turn() -> None:
    told: list[list[int]] = []
    clock = Clock()
    cores = [SimulatedCore(clock, step=step) for step in STEPS]
    given = [0, 0, 0]

    def count(place: int):  # type: ignore[no-untyped-def]
        def spoil(events):  # type: ignore[no-untyped-def]
            given[place] += sum(len(event.token_ids) for event in events)
            return events

        return spoil

    for place, core in enumerate(cores):
        core.spoil = count(place)
    pairs = [(core, TurnClock(clock)) for core in cores]
    drive_in_turns(pairs, CLOSED, 0, clock.wait, lambda ended: told.append(list(given)) if ended < 120 else None)
    most = max(4 * TURN_SECONDS / min(STEPS), 4) + 4  # four users, a token a step
    assert all(max(each) - min(each) <= most for each in told)


def test_clocks_stand_still_between_turns_even_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    own = TurnClock(clock)
    clock.wait(5)
    assert own() == 0.0
    with pytest.raises(ZeroDivisionError), own.turn():
        clock.wait(1 / (clock.wait(2) or 0))
    clock.wait(5)
    assert own() == 2.0
    monkeypatch.setattr("dspark.evaluation.bench.drive.SILENT_STEPS", 5)
    silent = SimulatedCore(clock, spoil=lambda events: [])
    with pytest.raises(EngineError, match="5 steps in a row"):
        drive_in_turns([(silent, own)], CLOSED, 0, clock.wait)


def test_progress_is_of_all() -> None:
    seen = list[int]()
    clock = Clock()
    pairs = [(SimulatedCore(clock, step=step), TurnClock(clock)) for step in (0.1, 0.2)]
    drive_in_turns(pairs, CLOSED, 0, clock.wait, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 2 * CLOSED.requests
