"""`dspark calibrate` on a small model."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from dspark.calibration.file import FILE_NAME, Pair, Sampling, load_calibration
from dspark.calibration.records import DraftMode
from dspark.calibration.shards import read_records
from dspark.cli.calibrate import drafter_and_files
from dspark.cli.destinations import check_directory, check_file
from dspark.errors import CompatibilityError, ConfigError


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    for name in ("math", "chat"):
        rows = [
            {"id": f"{name}-{i}", "domain": name, "turns": [f"{name} {i}?", "More."][: 1 + i % 2]} for i in range(3)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def drafter(world, tmp_path):
    """A copy that may be written into."""
    return shutil.copytree(world / "drafter", tmp_path / "drafter")


def arguments(world, drafter, prompts):
    return ("calibrate", drafter, "--data", prompts, "-t", world / "target", "-n", 24, "-T", 1)


def test_json_has_the_agreed_shape_and_the_file_belongs_to_the_pair(run, world, drafter, prompts, tmp_path):
    outcome = run(*arguments(world, drafter, prompts), "--json", "--plot", tmp_path / "figure.png")
    assert (outcome.status, outcome.err) == (0, "")
    report = outcome.json
    for key in ("ece_before", "ece_after", "auc"):
        assert len(report[key]) == len(report["domains"]["math"][key]) == 3
    assert report["fit_rounds"] > 0 < report["report_rounds"]
    assert report["method"] == "sts"
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")

    saved = json.loads((drafter / FILE_NAME).read_text())
    pair = Pair(saved["drafter_hash"], saved["target_hash"], saved["template_hash"], 3)
    found = load_calibration(drafter / FILE_NAME, pair, Sampling(DraftMode.SAMPLED, 1.0))
    assert len(found.report["ece_after"]) == 3
    with pytest.raises(CompatibilityError, match="draft_mode"):
        load_calibration(drafter / FILE_NAME, pair, Sampling(DraftMode.GREEDY, 0.0))


def test_only_token_rejection_has_exact_chances(run, world, drafter, prompts, tmp_path):
    call = (*arguments(world, drafter, prompts), "--limit", 2, "--json", "-o", tmp_path / "calibration.json")
    assert run(*call).json["oracle"] is not None
    assert run(*call, "--block-verification").json["oracle"] is None


def test_recorded_rounds_are_not_decoded_again(run, world, drafter, prompts, tmp_path):
    call = (*arguments(world, drafter, prompts), "--records", tmp_path / "rounds", "--json")
    first = run(*call, "--limit", 2).json
    (shard,) = (tmp_path / "rounds").glob("*")
    assert run(*call, "--limit", 2).json == first
    assert list((tmp_path / "rounds").glob("*")) == [shard]
    more = run(*call).json
    assert len(list((tmp_path / "rounds").glob("*"))) == 2
    assert more["fit_rounds"] + more["report_rounds"] == len(read_records([tmp_path / "rounds"]))


def test_records_of_other_settings_are_refused(run, world, drafter, prompts, tmp_path):
    call = (*arguments(world, drafter, prompts), "--records", tmp_path / "rounds", "--limit", 2)
    assert run(*call).status == 0
    run(*call, "-n", 25).refused("max_tokens", "rounds-00000")


def test_tables_name_positions_domains_and_methods(run, world, drafter, prompts):
    out = run(*arguments(world, drafter, prompts), "--limit", 2).out
    for word in ("ECE raw", "math", "isotonic", "logistic", "calibration.json"):
        assert word in out


def test_a_shells_list_of_files_is_understood():
    found = drafter_and_files(["own", "b.jsonl", "c.jsonl.gz"], [])
    assert found[0] == "own"
    assert [str(path) for path in found[1]] == ["b.jsonl", "c.jsonl.gz"]
    with pytest.raises(ConfigError, match="more than one drafter: a, b"):
        drafter_and_files(["a", "b", "c.jsonl"], [])


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("--output", "gone/calibration.json", ("create", "gone")),
        ("--output", "", ("is a directory",)),
        ("--plot", "gone/figure.png", ("create", "gone")),
        ("--plot", "taken/figure.png", ("cannot be written",)),
        ("--records", "taken/rounds", ("nothing can be written",)),
    ],
)
def test_what_could_not_be_written_is_refused_before_models_load(run, prompts, tmp_path, option, name, words):
    """Catches hours of decoding whose result has no place: without a target, later checks would name the target."""
    (tmp_path / "taken").write_text("a file")
    call = ("calibrate", "none", "--data", prompts, "-t", tmp_path / "no-target")
    run(*call, option, tmp_path / name).refused(option, str(tmp_path / name), *words)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory where not even root may write: /proc")
def test_a_directory_that_may_not_be_written_in_is_refused(run, prompts, tmp_path):
    call = ("calibrate", "none", "--data", prompts, "-t", tmp_path / "no-target")
    run(*call, "--output", "/proc/calibration.json").refused("/proc/calibration.json cannot be written", "--output")
    run(*call, "--records", "/proc/rounds").refused("nothing can be written in /proc/rounds", "--records")


def test_trying_leaves_files_as_they_were(tmp_path):
    present = tmp_path / "calibration.json"
    present.write_text("{}")
    check_file(present, "--output")
    check_file(tmp_path / "new.json", "--output")
    check_directory(tmp_path / "a" / "b", "--records")
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.json"]
    assert present.read_text() == "{}"


def test_bad_input_is_refused(run, world, drafter, prompts, monkeypatch):
    call = arguments(world, drafter, prompts)
    run("calibrate", "-t", world / "target").refused("no prompts", "--data")
    run("calibrate", "none", "--data", prompts, "-t", world / "target").refused("without a drafter")
    run(*call, "--report-share", 1).refused("--report-share")
    run(*call, "-T", -1).refused("temperature")
    run("calibrate", drafter, prompts / "none.jsonl", "-t", world / "target").refused("none.jsonl")
    run("calibrate", drafter, prompts / "math.jsonl", "-t", world / "target", "--limit", 1).refused("prompts is 1,")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run(*call, "--plot", "figure.png").refused("matplotlib", "dspark[plots]")
