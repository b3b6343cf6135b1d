"""A profile is measured once, and used only by the machine, models and versions it was measured with."""

import json
import os
import time
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest

from dspark.engine.models import Models
from dspark.engine.profile_plan import START_CEILING
from dspark.engine.profile_store import ROUGH_SECONDS, ProfileKey, ProfileStore
from dspark.engine.start_profile import WORTH_KEEPING, WORTH_SERVING, start_profile
from tests.engine.served import ServedDrafter, ServedTarget
from tests.engine.timed import FakeClock, TimedDrafter, TimedTarget

KEY = ProfileKey("processor", "features", 2, "target", "drafter", 4, "kernel", "0.1", "2.13")


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles")


@pytest.fixture(autouse=True)
def fake_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProfileKey, "of", classmethod(lambda cls, models: KEY))


def fakes(clock: FakeClock, positions: int = 256, drafter: bool = True, step: float = 1 / 64) -> Models:
    target = TimedTarget(clock, [step * n for n in (1.0, 1.5, 2.0, 2.5, 3.0)], max_positions=positions)
    return Models(target, None, TimedDrafter(clock, 4) if drafter else None, Path())  # type: ignore[arg-type]


def test_the_first_start_measures_and_later_ones_do_not(store: ProfileStore) -> None:
    clock = FakeClock()
    first = start_profile(fakes(clock), store, clock)
    assert first is not None
    assert first.table.subject == KEY.subject()
    measured = clock.now
    assert measured > 0
    assert start_profile(fakes(clock), store, clock) == first
    assert clock.now == measured


@pytest.mark.parametrize("name", [field.name for field in fields(ProfileKey)])
def test_a_profile_of_another_key_is_never_used(store: ProfileStore, name: str) -> None:
    clock = FakeClock()
    profile = start_profile(fakes(clock), store, clock)
    assert profile is not None
    other = replace(KEY, **{name: 9 if isinstance(getattr(KEY, name), int) else "other"})
    assert store.load(other) is None
    store.path(KEY).rename(store.path(other))  # even where a file claims to be that of the key
    assert store.load(other) is None


@pytest.mark.parametrize("text", ["", "null", "[]", '{"format": "other"}', "\x00"])
def test_a_damaged_file_is_measured_anew(store: ProfileStore, text: str) -> None:
    clock = FakeClock()
    start_profile(fakes(clock), store, clock)
    whole = store.path(KEY).read_text()
    store.path(KEY).write_text(text)
    start_profile(fakes(clock), store, clock)
    assert json.loads(store.path(KEY).read_text())["table"] == json.loads(whole)["table"]


def test_what_is_too_noisy_is_not_kept(store: ProfileStore) -> None:
    noise = Random(0)
    clock = FakeClock(lambda: 1 + 9 * noise.random() ** 2)
    assert start_profile(fakes(clock), store, clock) is not None
    assert not store.path(KEY).exists()


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    clock = FakeClock()
    assert start_profile(fakes(clock), ProfileStore(tmp_path / "file"), clock) is not None


@pytest.mark.parametrize("step", [0.001, 0.01, 0.03, 0.05, 0.09, 0.5, 2.0])
def test_a_start_is_brief_whatever_a_step_costs(store: ProfileStore, step: float) -> None:
    """At most twice what is estimated: sizes cost up to three steps here, not one. Slow targets pay for two steps."""
    clock = FakeClock()
    profile = start_profile(fakes(clock, step=step), store, clock)
    assert clock.now <= max(2 * START_CEILING, 5 * step)
    assert (profile is None) == (step > 0.1)
    assert store.path(KEY).exists() == (profile is not None)


def test_without_drafter_or_room_there_is_no_profile(store: ProfileStore) -> None:
    clock = FakeClock()
    assert start_profile(fakes(clock, drafter=False), store, clock) is None
    assert start_profile(fakes(clock, positions=5), store, clock) is None


@pytest.mark.parametrize("unknown", [{"target_hash": ""}, {"drafter_hash": ""}])
def test_models_without_a_hash_leave_nothing_behind(store: ProfileStore, unknown: dict[str, str]) -> None:
    clock = FakeClock()
    profile = start_profile(fakes(clock), store, clock)
    assert profile is not None
    store.save(profile, replace(KEY, **unknown))
    assert store.load(replace(KEY, **unknown)) is None
    assert len(list(store.path(KEY).parent.iterdir())) == 1
    assert replace(KEY, drafter_hash="", gamma=0).known


def served(clock: FakeClock, together: bool = True) -> Models:
    drafter = ServedDrafter(clock, 4, 0.001, 0.001, 0.0001) if together else TimedDrafter(clock, 4)
    target = ServedTarget(clock, 1 / 1024, 1 / 4096, max_positions=2048)
    return Models(target, None, drafter, Path())  # type: ignore[arg-type]


@pytest.mark.parametrize("together", [True, False], ids=["at once", "one by one"])
def test_a_profile_for_many_requests_is_measured_once(store: ProfileStore, together: bool) -> None:
    clock = FakeClock()
    first = start_profile(served(clock, together), store, clock, requests=32)
    assert first is not None
    assert (first.table.requests[-1], first.table.spread[-1]) == (32 if together else 1, 32)
    measured = clock.now
    for requests in (32, 8, 1):
        assert start_profile(served(clock, together), store, clock, requests) == first
    assert clock.now == measured


def test_a_profile_of_one_request_does_not_serve_many(store: ProfileStore) -> None:
    clock = FakeClock()
    alone = start_profile(served(clock), store, clock)
    assert alone is not None
    many = start_profile(served(clock), store, clock, requests=16)
    assert many is not None
    assert (alone.table.requests[-1], many.table.requests[-1]) == (1, 16)
    assert {*alone.table.tokens} <= {*many.table.tokens}
    assert start_profile(served(clock), store, clock) == many


def test_targets_that_take_one_request_at_a_time_are_profiled_so(store: ProfileStore) -> None:
    clock = FakeClock()
    found = start_profile(fakes(clock), store, clock, requests=64)
    assert found is not None
    assert found.table.requests == (1,)
    measured = clock.now
    assert start_profile(fakes(clock), store, clock, requests=64) == found
    assert clock.now == measured


def test_a_noisy_profile_for_many_does_for_them_and_for_a_day(store: ProfileStore) -> None:
    noise = Random(1)
    clock, calm = FakeClock(lambda: 1 + 0.25 * noise.random()), FakeClock()
    many = start_profile(served(clock), store, clock, requests=4)
    assert many is not None
    assert WORTH_KEEPING < many.table.noise < WORTH_SERVING
    assert start_profile(served(calm), store, calm, requests=4) == many
    assert calm.now == 0
    one = start_profile(served(calm), store, calm)
    assert one is not None
    assert one.table.noise < WORTH_KEEPING
    assert start_profile(served(calm), store, calm, requests=4) == many
    assert start_profile(served(calm), store, calm) == one
    yesterday = time.time() - ROUGH_SECONDS - 60
    os.utime(store.path(KEY, rough=True), (yesterday, yesterday))
    again = start_profile(served(calm), store, calm, requests=4)
    assert again is not None
    assert again.table.noise < WORTH_KEEPING
    assert start_profile(served(calm), store, calm) == again
