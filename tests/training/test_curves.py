"""Curves come from the log as it is; the picture needs matplotlib, and a run can do without."""

import json
import struct
import sys
from pathlib import Path

import pytest

from dspark.errors import FormatError
from dspark.training.curves import Curve, TrainingCurves, draw_run, save_curves
from dspark.training.metrics_log import MetricsLog
from dspark.training.stopping import Best, accepted_length


def write_log(directory: Path, steps: int = 6) -> None:
    log = MetricsLog(directory)
    for step in range(1, steps + 1):
        row = {"step": step, "cpu_seconds": 1800.0, "learning_rate": step / 10, "loss": 4.0 - step / 2}
        if step == 3:
            row = {"step": 3, "cpu_seconds": 1800.0, "learning_rate": 0.3, "skipped": "Loss nan"}
        if step % 2 == 0:
            row["held_out"] = {"loss": 5.0, "tau": 1 + step / 10, "acceptance": [0.5, 0.25]}
            row["on_policy"] = {"tau": 2 - abs(step - 4) / 10, "acceptance": [0.6, 0.3][: 1 + step // 4]}
        log.append(row)


def test_curves_of_a_log(tmp_path: Path) -> None:
    write_log(tmp_path)
    curves = TrainingCurves.read(tmp_path)
    assert curves.loss == Curve((1, 2, 4, 5, 6), (3.5, 3.0, 2.0, 1.5, 1.0))
    assert curves.skipped == (3,)
    assert curves.tau_decoded == Curve((2, 4, 6), (1.8, 2.0, 1.8))
    assert curves.tau_forced == Curve((2, 4, 6), (1.2, 1.4, 1.6))
    assert curves.hours_at([2, 6]) == [1.0, 3.0]
    assert curves.positions == (Curve((2, 4, 6), (0.6,) * 3), Curve((4, 6), (0.3, 0.3)))
    assert curves.best == Best(2.0, 4, 1)


def test_logs_of_early_versions_are_read(tmp_path: Path) -> None:
    row = {
        "step": 1,
        "time": 0.0,
        "seconds": 7200.0,
        "loss": 1.0,
        "held_out": {"loss": 1.0, "tau": 1.5, "acceptance": [0.5]},
    }
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    curves = TrainingCurves.read(tmp_path)
    assert (curves.cpu_hours.y, curves.tau_decoded.y, curves.best.tau) == ((2.0,), (), 1.5)
    save_curves(curves, tmp_path / "old.png")


def test_smoothing_averages_backwards() -> None:
    curve = Curve((1, 2, 3, 4), (1.0, 3.0, 5.0, 7.0))
    assert curve.smoothed(2).y == (1.0, 2.0, 4.0, 6.0)
    assert curve.smoothed(1) == curve
    assert Curve((), ()).smoothed(3) == Curve((), ())


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    write_log(tmp_path)
    picture = draw_run(tmp_path)
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1440, 792)


def test_a_single_step_can_be_drawn(tmp_path: Path) -> None:
    MetricsLog(tmp_path).append({"step": 1, "loss": float("nan")})
    assert draw_run(tmp_path)


def test_without_matplotlib_there_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw_run(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "holds no steps"), ("", "holds no steps"), ("{}\n", "line 1 has no step"), ('{"step": 1}\nx\n', "line 2")],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(FormatError, match=message):
        TrainingCurves.read(tmp_path)


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    MetricsLog(tmp_path).append(
        {"step": 1, "loss": float("nan"), "held_out": {"tau": float("inf"), "a": [float("nan")]}}
    )
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "step": 1, "loss": None, "held_out": {"tau": None, "a": [None]}
    }  # fmt: skip


def test_the_accepted_length_is_of_decoding_if_there_was_any() -> None:
    assert accepted_length({"step": 1}) is None
    assert accepted_length({"step": 1, "held_out": {"tau": 1.5}}) == 1.5
    assert accepted_length({"step": 1, "held_out": {"tau": 1.5}, "on_policy": {"tau": 1.4}}) == 1.4
    assert Best().after(1, float("nan")) == Best(since=1)
