"""Shards: what is written is read, what is damaged or foreign is refused by name."""

import numpy as np
import pytest

from dspark.calibration.shards import RecordStore, read_records, read_shard, shard_paths, write_shard
from dspark.errors import CompatibilityError, FormatError
from tests.calibration.rounds import records

SETTINGS = {"drafter_hash": "aa", "temperature": 1.0}


def test_rounds_come_back_as_they_were(tmp_path):
    first = records([1, 2], domain=np.array(["math", "chat"]), request=np.array([7, 2**64 - 1], dtype=np.uint64))
    second = records([3], domain=np.array(["code"]))
    store = RecordStore(tmp_path / "rounds", SETTINGS)
    for part in (first, second):
        store.append(part)
    back = RecordStore(tmp_path / "rounds", SETTINGS).read()
    assert back.domain.tolist() == ["math", "chat", "code"]
    assert back.request.tolist() == [7, 2**64 - 1, 0]
    for name, value in first.arrays().items():
        assert (getattr(back, name)[:2] == value).all(), name
    assert store.requests() == {(7, "math"), (2**64 - 1, "chat"), (0, "code")}


def test_absent_heads_survive_the_disk(tmp_path):
    write_shard(tmp_path / "one", records([1], confidence=np.full((1, 3), np.nan)), {})
    assert read_shard(tmp_path / "one").signals.confidence is None


def test_a_round_of_gamma_seven_takes_less_than_a_hundred_bytes(tmp_path):
    write_shard(tmp_path / "one", records([1] * 1000, gamma=7), {})
    assert (tmp_path / "one").stat().st_size < 100 * 1000


def test_nothing_is_written_for_no_rounds(tmp_path):
    RecordStore(tmp_path / "rounds", SETTINGS).append(records([1]).take(np.array([], dtype=int)))
    assert shard_paths(tmp_path / "rounds") == []
    with pytest.raises(FormatError, match="expected recorded rounds"):
        read_records([tmp_path])


def test_other_settings_are_refused_by_name(tmp_path):
    RecordStore(tmp_path, SETTINGS).append(records([1]))
    with pytest.raises(CompatibilityError, match=r"drafter_hash, gamma differ"):
        RecordStore(tmp_path, {"drafter_hash": "bb", "temperature": 1.0, "gamma": 3})


@pytest.mark.parametrize("content", [b"", b"not safetensors at all"])
def test_damaged_shards_are_refused(tmp_path, content):
    (tmp_path / "rounds-00000.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match="rounds-00000"):
        RecordStore(tmp_path, SETTINGS)
    with pytest.raises(FormatError, match="rounds-00000"):
        read_records([tmp_path])


def test_what_does_not_exist_is_not_called_damaged(tmp_path):
    RecordStore(tmp_path, SETTINGS).append(records([1]))
    with pytest.raises(FormatError, match="gone does not exist"):
        read_records([tmp_path, tmp_path / "gone"])


def test_other_tensors_are_no_records(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "rounds-00000.safetensors")
    with pytest.raises(FormatError, match="version None"):
        read_records([tmp_path])


def test_an_interrupted_write_leaves_no_shard(tmp_path):
    store = RecordStore(tmp_path, SETTINGS)
    store.append(records([1]))
    (tmp_path / "rounds-00001.partial").write_bytes(b"half")
    store.append(records([2]))
    assert store.read().accepted.tolist() == [1, 2]
