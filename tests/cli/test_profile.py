"""`dspark profile` on a small model."""

import sys

import pytest
import torch

from dspark.engine.models import open_models
from dspark.engine.profile_store import ProfileKey
from dspark.engine.start_profile import start_profile
from dspark.types import BatchDrafter, RaggedTarget


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DSPARK_COMPILED", "0")  # an empty cache holds no compiled library either


def call(world, *arguments):
    return ("profile", "-t", world / "target", "-d", world / "drafter", "--seconds", 0, "--requests", 1, *arguments)


def test_json_has_the_agreed_shape_and_the_plot_is_drawn(run, world, tmp_path):
    outcome = run(*call(world, "-c", 8, "-c", 32, "--threads", 1, "--json", "--plot", tmp_path / "cost.png"))
    assert (outcome.status, outcome.err) == (0, "")
    report = outcome.json
    assert list(report["verify_seconds"]) == [
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "12",
        "16",
        "24",
        "32",
        "48",
        "64",
        "96",
    ]
    assert list(report["verify_seconds_by_context"]) == ["8", "32"]
    assert list(report["draft_seconds"]) == ["1"]
    assert report["draft_requests_measured"] == 1
    assert list(report["block_seconds"]) == ["1", "2", "3"]
    assert set(report["draft_limit"]) == {"greedy", "sampled"}
    assert report["threads"] == 1
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_a_kept_profile_is_shown_again_until_asked_for_a_fresh_one(run, world, monkeypatch):
    first = run(*call(world, "-c", 8, "--json")).json
    assert run(*call(world, "-c", 8, "--json")).json == first
    assert "earlier run" in run(*call(world, "-c", 8)).err
    assert run(*call(world, "-c", 8, "--fresh", "--json")).json["subject"] == first["subject"]
    assert run(*call(world, "-c", 16, "--json")).json["verify_seconds_by_context"].keys() == {"16"}


def test_decoding_starts_with_what_was_profiled(run, world, monkeypatch):
    first = run(*call(world, "-c", 8, "--json")).json
    models = open_models(world / "target", world / "drafter")
    monkeypatch.setattr("dspark.engine.start_profile.profile_rounds", None)  # cannot be called
    found = start_profile(models)
    assert found.as_json()["verify_seconds"] == first["verify_seconds"]
    assert found.table.subject == ProfileKey.of(models).subject()


def test_a_long_context_alone_brings_the_short_one_that_decoding_reads(run, world):
    assert list(run(*call(world, "-c", 100, "--json")).json["verify_seconds_by_context"]) == ["16", "100"]


def test_many_requests_are_measured_where_the_target_takes_them(run, world):
    """What a batch drafter does not do at once is timed for one."""
    models = open_models(world / "target", world / "drafter")
    ragged, together = isinstance(models.target, RaggedTarget), isinstance(models.drafter, BatchDrafter)
    outcome = run(*call(world, "-c", 8, "--requests", 4))
    assert outcome.status == 0
    assert ("one is measured" in outcome.err) is not ragged
    report = run(*call(world, "-c", 8, "--requests", 4, "--json")).json
    assert report["draft_requests_measured"] == (4 if ragged and together else 1)
    assert list(report["verify_seconds"])[-1] == ("16" if ragged else "96")
    assert set(report["requests_by_tokens"].values()) == ({1, 2, 3, 4} if ragged else {1})


def test_tables_name_tokens_contexts_and_drafts(run, world):
    out = run(*call(world, "-c", 8, "-c", 16)).out
    assert "extrapolated" in out
    for word in ("Verification", "after 16", "Whole greedy rounds", "Drafts that pay", "differences below"):
        assert word in out


def test_a_target_alone_can_be_profiled(run, world):
    report = run("profile", "-t", world / "target", "-d", "none", "--seconds", 0, "-c", 8, "--json").json
    assert report["draft_seconds"] == {"1": 0.0}
    assert report["draft_limit"] == {}
    assert "greedy rounds" not in run("profile", "-t", world / "target", "-d", "none", "--seconds", 0, "-c", 8).out


def test_bad_input_is_refused(run, world, tmp_path, monkeypatch):
    run(*call(world, "-c", 125)).refused("context 125", "128")
    run(*call(world, "-c", 0)).refused("context 0")
    run(*call(world, "--threads", 0)).refused("--threads")
    run(*call(world, "--requests", 0)).refused("--requests")
    run(*call(world, "--seconds", -1)).refused("--seconds")
    run(*call(world, "--seconds", "nan")).refused("--seconds")
    run("profile", "-t", "nowhere").refused("nowhere")
    run("profile", "-t", world / "target", "-d", "nowhere").refused("nowhere")
    run(*call(world, "-c", 8, "--plot", tmp_path / "no" / "cost.png")).refused("cost.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run(*call(world, "--plot", "cost.png")).refused("matplotlib", "dspark[plots]")
