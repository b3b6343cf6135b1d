"""Phases of a start are told apart, and add up."""

import importlib

from benchmarks.start_time import INNER, PHASES, Phases, row, table


def test_a_phase_does_not_count_what_runs_inside_it():
    times = iter([0.0, 1.0, 4.0, 5.0, 7.0, 10.0])
    phases = Phases(lambda: next(times))
    inner = phases.around("inner", lambda value, more: value + more)
    with phases.phase("outer"):
        assert inner(1, more=2) == 3
        assert inner(2, more=2) == 4
    assert phases.seconds == {"inner": 5.0, "outer": 5.0}


def test_a_phase_that_raises_is_closed():
    times = iter([0.0, 1.0, 2.0, 3.0])
    phases = Phases(lambda: next(times))
    with phases.phase("outer"):
        try:
            with phases.phase("inner"):
                raise ValueError
        except ValueError:
            pass
    assert phases.seconds == {"inner": 1.0, "outer": 2.0}


def test_every_inner_phase_is_called_where_it_is_looked_for():
    for module, function in INNER.values():
        assert callable(getattr(importlib.import_module(module), function))


def test_a_row_holds_medians_and_phases_that_did_not_run_took_nothing():
    runs = [
        {"ready_seconds": ready, "seconds": {"torch": 1.0}, "cpu_seconds": {"torch": 0.5}, "profile_found": kept}
        for ready, kept in ((2.0, True), (9.0, False), (3.0, True))
    ]
    found = row("warm", runs)
    assert (found["ready_seconds"], found["range"], found["cpu_seconds"]) == (3.0, [2.0, 9.0], 0.5)
    assert (found["phases"]["torch"], found["phases"]["profile"], found["profiles_found"]) == (1.0, 0.0, 2)
    header, rule, line = table([found]).splitlines()
    assert header.count("|") == rule.count("|") == line.count("|") == len(PHASES) + 4
    assert line.startswith("| warm | 3.00 (2.00 to 9.00) | 0.50 |")
