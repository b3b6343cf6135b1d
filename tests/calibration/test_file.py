"""calibration.json: every model comes back, and what does not belong is refused by the field that differs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dspark.calibration.file import FILE_NAME, Calibration, Pair, Sampling, load_calibration, save_calibration
from dspark.calibration.methods import MethodName, method, model_to_json
from dspark.calibration.oracle import Oracle
from dspark.calibration.records import DraftMode
from dspark.calibration.simulator import SimulatedDrafter
from dspark.calibration.temperature import SequentialTemperature
from dspark.errors import CompatibilityError, ConfigError, FormatError

PAIR = Pair("d" * 64, "t" * 64, "c" * 16, 3)
SAMPLING = Sampling(DraftMode.SAMPLED, 1.0)
GREEDY = Sampling(DraftMode.GREEDY, 0.0)
MODEL = SequentialTemperature((1.5, 1.2, 0.9))


@pytest.fixture
def path(tmp_path):
    save_calibration(tmp_path / FILE_NAME, Calibration(PAIR, SAMPLING, MODEL, {"ece_after": [0.01]}))
    return tmp_path / FILE_NAME


@pytest.mark.parametrize("head", [True, False], ids=["head", "headless"])
@pytest.mark.parametrize("name", MethodName)
def test_every_method_comes_back_exactly(tmp_path, name, head):
    drafter = SimulatedDrafter(overconfidence=(1.5, 1.5, 1.5))
    rounds = drafter.run(20, 20, np.random.default_rng(0)).records
    rounds = rounds if head else replace(rounds, confidence=np.full_like(rounds.confidence, np.nan))
    model = method(name).fit(rounds)
    save_calibration(tmp_path / FILE_NAME, Calibration(PAIR, SAMPLING, model))
    assert load_calibration(tmp_path / FILE_NAME, PAIR, SAMPLING).model == model


def test_files_that_do_not_say_what_they_were_fitted_on_are_of_a_head(path):
    data = json.loads(path.read_text())
    assert data["entries"][0]["model"].pop("source") == "confidence"
    path.write_text(json.dumps(data))
    assert load_calibration(path, PAIR, SAMPLING).model == MODEL


def test_samplings_share_a_file_and_are_replaced_one_by_one(path):
    other, newer = SequentialTemperature((2.0, 2.0, 2.0)), SequentialTemperature((3.0, 3.0, 3.0))
    save_calibration(path, Calibration(PAIR, GREEDY, other))
    save_calibration(path, Calibration(PAIR, SAMPLING, newer))
    assert load_calibration(path, PAIR, GREEDY).model == other
    assert load_calibration(path, PAIR, SAMPLING).model == newer
    assert len(json.loads(path.read_text())["entries"]) == 2


def test_a_new_drafter_leaves_nothing_of_the_old_one(path):
    pair = replace(PAIR, drafter_hash="e" * 64)
    save_calibration(path, Calibration(pair, GREEDY, MODEL))
    with pytest.raises(CompatibilityError, match="draft_mode"):
        load_calibration(path, pair, SAMPLING)


@pytest.mark.parametrize(
    ("field", "value"),
    [("drafter_hash", "e" * 64), ("target_hash", "u" * 64), ("template_hash", "v" * 16), ("gamma", 7)],
    ids=str,
)
def test_another_pair_is_refused_by_field(path, field, value):
    with pytest.raises(CompatibilityError, match=field):
        load_calibration(path, replace(PAIR, **{field: value}), SAMPLING)


@pytest.mark.parametrize("field", ["drafter_hash", "target_hash", "template_hash"])
def test_what_has_no_identity_is_refused(field):
    with pytest.raises(ConfigError, match=field):
        replace(PAIR, **{field: ""})


@pytest.mark.parametrize(
    ("field", "value"), [("draft_mode", DraftMode.GREEDY), ("temperature", 0.7), ("rule", "BlockVerification")], ids=str
)
def test_another_sampling_is_refused_by_field(path, field, value):
    with pytest.raises(CompatibilityError, match=field):
        load_calibration(path, PAIR, replace(SAMPLING, **{field: value}))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FormatError, match="dspark calibrate"):
        load_calibration(tmp_path / FILE_NAME, PAIR, SAMPLING)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("gamma"),
        lambda data: data.pop("template_hash"),
        lambda data: data.update(target_hash=""),
        lambda data: data.update(version=2),
        lambda data: data.update(entries=[{}]),
        lambda data: data.update(entries="none"),
        lambda data: data["entries"][0].update(draft_mode="odd"),
        lambda data: data["entries"][0]["model"].update(method="odd"),
        lambda data: data["entries"][0]["model"].update(source="odd"),
        lambda data: data["entries"][0]["model"].update(temperatures=[1.0, -1.0, 1.0]),
        lambda data: data["entries"][0]["model"].pop("temperatures"),
        lambda data: data["entries"][0]["model"].update(temperatures=[1.0]),
    ],
)
def test_damaged_files_are_refused(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError):
        load_calibration(path, PAIR, SAMPLING)


def test_an_entry_without_a_model_is_named(path):
    data = json.loads(path.read_text())
    del data["entries"][0]["model"]
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError, match="calibration.json has an entry without `model`"):
        load_calibration(path, PAIR, SAMPLING)


@pytest.mark.parametrize(
    ("field", "value"),
    [("y", [0.0]), ("y", [0.0, float("nan")]), ("x", [1.0, 0.0]), ("y", [0.0, 2.0]), ("x", None)],
    ids=str,
)
def test_damaged_isotonic_maps_are_refused_by_field(path, field, value):
    data = json.loads(path.read_text())
    maps = [{"x": [0.0, 1.0], "y": [0.0, 1.0]} for _ in range(3)]
    maps[1][field] = value
    data["entries"][0]["model"] = {"method": "isotonic", "maps": maps}
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError, match=rf"\b{field}\b"):
        load_calibration(path, PAIR, SAMPLING)


def test_a_damaged_file_can_be_written_anew(path):
    path.write_text("{")
    save_calibration(path, Calibration(PAIR, SAMPLING, MODEL))
    assert load_calibration(path, PAIR, SAMPLING).model == MODEL


def test_what_cannot_be_read_back_is_not_saved():
    with pytest.raises(ConfigError, match="Oracle"):
        model_to_json(Oracle(np.zeros((1, 1))))
