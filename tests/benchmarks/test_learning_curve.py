"""Curves join the logs of a chain, and forecasts find the law of made-up ones and admit what they cannot know."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import learning_curve
from benchmarks.learning_curve import LearningCurve, as_json, chain, outlook, save_figure, table
from benchmarks.power_law import PowerLaws
from dspark.errors import FormatError
from dspark.training.metrics_log import MetricsLog
from dspark.training.state import TrainingState

HOURS = np.linspace(0.2, 4.0, 20)


def saturating(hours):
    return 2.5 - 0.8 * hours**-0.5


def write_run(directory: Path, taus: list[float], cooled: int = 0, key: str = "held_out") -> Path:
    """A run that evaluates every second step; steps take half an hour, and the last `cooled` have a lower rate."""
    directory.mkdir()
    for step in range(1, 2 * len(taus) + 1):
        rate = 1e-3 if step <= 2 * len(taus) - cooled else 5e-4
        row = {"step": step, "seconds": 9e9, "cpu_seconds": 1800.0, "learning_rate": rate}
        MetricsLog(directory).append(row | ({key: {"tau": taus[step // 2 - 1]}} if step % 2 == 0 else {}))
    return directory


def test_a_saturating_law_is_found():
    laws = PowerLaws.fit(list(HOURS), list(saturating(HOURS)))
    assert laws.exponent[0] == pytest.approx(0.5)
    gain, (low, high) = laws.gain(4.0)
    assert gain == pytest.approx(saturating(16.0) - saturating(4.0), abs=1e-9)
    assert (low, high) == pytest.approx((gain, gain), abs=1e-9), "a curve without scatter leaves no doubt"


def test_a_curve_that_never_saturates_is_told_as_such():
    laws = PowerLaws.fit(list(HOURS), list(1.5 + 0.2 * np.log(HOURS)))
    assert laws.exponent[0] == 0
    assert laws.gain(2.0)[0] == pytest.approx(0.2 * np.log(2))


def test_intervals_of_gains_cover_them_about_as_often_as_they_say():
    """Errors of neighbours are alike, as evaluations on the same answers are. Nominally 95 %; demanded: 75 % of 60."""
    generator = np.random.default_rng(1)
    truth, covered = saturating(8.0) - saturating(4.0), 0
    for trial in range(60):
        noise = generator.normal(0, 0.02, size=21)
        _, (low, high) = PowerLaws.fit(list(HOURS), list(saturating(HOURS) + noise[1:] + 0.5 * noise[:-1]), trial).gain(
            2
        )
        covered += low <= truth <= high
    assert covered >= 45


def test_a_curve_that_does_not_rise_promises_nothing():
    noise = np.random.default_rng(2).normal(0, 0.02, size=20)
    _, (low, high) = PowerLaws.fit(list(HOURS), list(2.0 + noise)).gain(2.0)
    assert low < 0 < high


def test_runs_that_start_from_one_another_are_one_curve(tmp_path: Path):
    first, second = write_run(tmp_path / "a", [1.1, 1.2]), write_run(tmp_path / "b", [1.3, 1.4])
    curve = LearningCurve.read("both", [first, second])
    assert [(p.hours, p.step, p.tau) for p in curve.points] == [
        (1.0, 2, 1.1), (2.0, 4, 1.2), (3.0, 6, 1.3), (4.0, 8, 1.4),
    ]  # fmt: skip
    later = LearningCurve.read("later", [first, second], before=2.5)
    assert [p.hours for p in later.points] == [3.5, 4.5, 5.5, 6.5]


def test_a_chain_is_named_on_the_command_line():
    assert chain("a=runs/1,runs/2") == ("a", (Path("runs/1"), Path("runs/2")), 0.0)
    assert chain("a=+2.5,runs/2") == ("a", (Path("runs/2"),), 2.5)


def test_a_chain_is_measured_in_one_way(tmp_path: Path):
    """The second run decodes too, the first does not: both are told teacher-forced, or the chain would have a jump."""
    first, second = write_run(tmp_path / "a", [1.1]), write_run(tmp_path / "b", [1.3])
    MetricsLog(second).append({"step": 3, "cpu_seconds": 1.0, "learning_rate": 1e-3, "on_policy": {"tau": 9.0}})
    assert LearningCurve.read("both", [first, second]).measure == "held_out"
    assert LearningCurve.read("second", [second]).measure == "on_policy"
    with pytest.raises(FormatError, match="no evaluation in common"):
        LearningCurve.read("x", [first, write_run(tmp_path / "c", [1.0], key="on_policy")])


def test_a_cool_down_is_drawn_but_not_fitted(tmp_path: Path):
    taus = [1.0 + 0.1 * np.log(n) for n in range(1, 13)]
    plain = LearningCurve.read("x", [write_run(tmp_path / "plain", taus)])
    cooled = LearningCurve.read("x", [write_run(tmp_path / "cooled", [*taus, 5.0, 6.0], cooled=4)])
    assert len(cooled.points) == len(plain.points) + 2
    assert outlook(cooled) == outlook(plain)


def test_logs_that_do_not_tell_the_rate_are_cooled_after_the_kept_state(tmp_path: Path, monkeypatch):
    run = tmp_path / "old"
    run.mkdir()
    for step in range(1, 5):
        MetricsLog(run).append({"step": step, "seconds": 1.0, "held_out": {"tau": 1.0}})
    assert len(LearningCurve.read("old", [run]).rising) == 4
    monkeypatch.setattr(learning_curve, "read_state", lambda directory: TrainingState(3))
    assert [point.step for point in LearningCurve.read("old", [run]).rising] == [1, 2, 3]


def test_the_outlook_is_held_against_what_came(tmp_path: Path):
    noise = np.random.default_rng(3).normal(0, 0.003, size=20)
    smooth = [1 + 0.1 * np.log(n) + noise[n - 1] for n in range(1, 21)]
    found = outlook(LearningCurve.read("x", [write_run(tmp_path / "s", smooth)]))
    low, high = found["gains"]["4"]["ci95"]
    assert low < 0.1 * np.log(4) < high
    assert found["check"]["held"]
    assert found["check"]["came"] == pytest.approx(0.1 * np.log(2), abs=0.01)
    broken = [value if n < 10 else smooth[9] for n, value in enumerate(smooth)]
    assert not outlook(LearningCurve.read("x", [write_run(tmp_path / "b", broken)]))["check"]["held"]


def test_short_curves_get_no_outlook_and_the_report_says_so(tmp_path: Path):
    short = LearningCurve.read("short", [write_run(tmp_path / "short", [1.1, 1.3])])
    assert outlook(short) is None
    last = table({"short": as_json(short, None)}).splitlines()[-1]
    assert last.startswith("| short | 2.0 | 1.10 to 1.30 | teacher-forced")
    assert "too few evaluations" in last


def test_the_figure_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    long = LearningCurve.read("long", [write_run(tmp_path / "long", list(saturating(HOURS)))])
    save_figure(tmp_path / "curve.png", [long, LearningCurve.read("s", [write_run(tmp_path / "s", [1.0])])])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
