"""Records come back as they were kept: loose, packed, after a kill at any moment, and with others at work."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dspark.data import feature_store
from dspark.data.feature_store import FeatureStore
from dspark.errors import CompatibilityError, FormatError

ORIGIN = {"target": "t", "taps": "1,2", "top_k": "3", "precision": "fp8"}


def record(index, rows=5):
    generator = torch.Generator().manual_seed(index)
    return {
        "features": torch.randn(rows + index, 8, generator=generator).to(torch.float8_e4m3fn),
        "scales": torch.rand(rows + index, generator=generator),
        "ids": torch.randint(0, 9, (rows, 3), generator=generator).int(),
        "probabilities": torch.rand(rows, 3, generator=generator).half(),
    }


def store(directory, shard_bytes=1 << 20, **origin):
    return FeatureStore(directory, ORIGIN | origin, shard_bytes)


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype is tensor.dtype and torch.equal(found[name].float(), tensor.float())
        for name, tensor in expected.items()
    )


def shards(directory):
    return sorted(directory.glob("shard-*"))


def loose(directory):
    return sorted(path.stem for path in directory.iterdir() if not path.name.startswith("shard-"))


def test_loose_records_are_found_by_anybody(tmp_path):
    store(tmp_path).write("a", record(1))
    assert same(store(tmp_path).read("a"), record(1))
    assert store(tmp_path).read("b") is None
    assert store(tmp_path / "nowhere").read("a") is None


def test_records_are_packed_when_there_are_enough_and_read_by_old_and_new_readers(tmp_path):
    writer, reader = store(tmp_path, shard_bytes=2000), store(tmp_path)
    for index in range(10):
        writer.write(f"k{index}", record(index))
        assert same(reader.read("k0"), record(0))
    assert len(shards(tmp_path)) >= 2
    assert len(loose(tmp_path)) < 5
    for reading in (writer, reader, store(tmp_path)):
        assert all(same(reading.read(f"k{index}"), record(index)) for index in range(10))


def test_a_read_touches_the_rows_of_its_record_alone(tmp_path, monkeypatch):
    writer = store(tmp_path)
    for index in range(4):
        writer.write(f"k{index}", record(index))
    writer.pack()
    asked = []
    real = feature_store.safe_open

    class Spy:
        def __init__(self, *arguments, **options):
            self.opened = real(*arguments, **options)

        def __enter__(self):
            self.file = self.opened.__enter__()
            return self

        def __exit__(self, *error):
            return self.opened.__exit__(*error)

        def __getattr__(self, name):
            assert name != "get_tensor"
            return getattr(self.file, name)

        def get_slice(self, name):
            rows = self.file.get_slice(name)

            class Rows:
                def __getitem__(self, which):
                    asked.append(which.stop - which.start)
                    return rows[which]

            return Rows()

    monkeypatch.setattr(feature_store, "safe_open", Spy)
    assert same(writer.read("k2"), record(2))
    assert asked == [7, 7, 5, 5]


def test_packing_loses_nothing_whenever_it_is_killed(tmp_path, monkeypatch):
    """Before the shard is there, after it, and after some loose records are gone."""
    for deaths in range(6):
        directory = tmp_path / str(deaths)
        for index in range(3):
            store(directory).write(f"k{index}", record(index))
        alive = iter(range(deaths))

        def dying(real, alive=alive):
            def call(self, *arguments, **options):
                if next(alive, None) is None:
                    raise KeyboardInterrupt
                return real(self, *arguments, **options)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dying(Path.replace))
            patch.setattr(Path, "unlink", dying(Path.unlink))
            if deaths < 4:
                with pytest.raises(KeyboardInterrupt):
                    store(directory).pack()
            else:
                store(directory).pack()
        again = store(directory)
        assert all(same(again.read(f"k{index}"), record(index)) for index in range(3))
        again.pack()
        assert (len(shards(directory)), [name for name in loose(directory) if "partial" not in name]) == (1, [])
        assert all(same(store(directory).read(f"k{index}"), record(index)) for index in range(3))


def test_two_packers_leave_one_shard(tmp_path):
    first, second = store(tmp_path), store(tmp_path)
    for index in range(3):
        first.write(f"k{index}", record(index))
        second.write(f"k{index}", record(index))
    assert (first.pack(), second.pack()) == (3, 0)
    assert len(shards(tmp_path)) == 1
    assert all(same(second.read(f"k{index}"), record(index)) for index in range(3))


def test_the_index_is_in_the_shard(tmp_path):
    """A shard that was copied elsewhere is a store."""
    writer = store(tmp_path)
    writer.write("a", record(1))
    writer.write("b", record(2))
    writer.pack()
    other = tmp_path / "other"
    other.mkdir()
    shards(tmp_path)[0].rename(other / "shard-renamed.safetensors")
    assert same(store(other).read("b"), record(2))
    with safe_open(other / "shard-renamed.safetensors", framework="pt") as file:
        assert file.metadata()["records"] == '{"a": [0, 6, 0, 5], "b": [6, 13, 5, 10]}'


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("other", [{"target": "u"}, {"taps": "1,3"}, {"top_k": "4"}, {"precision": "bf16"}])
def test_records_made_for_something_else_are_refused(tmp_path, packed, other):
    writer = store(tmp_path)
    writer.write("a", record(1))
    if packed:
        writer.pack()
    name = next(iter(other))
    with pytest.raises(CompatibilityError, match=f"{name} '{ORIGIN[name]}', expected '{other[name]}'"):
        store(tmp_path, **other).read("a")


def test_files_of_early_versions_hold_bf16(tmp_path):
    """They do not tell their precision."""
    tensors = {name: tensor for name, tensor in record(1).items() if name != "scales"}
    tensors["features"] = tensors["features"].bfloat16()
    told = {name: value for name, value in ORIGIN.items() if name != "precision"} | {"tokens": "a"}
    save_file(tensors, tmp_path / "a.safetensors", metadata=told)
    assert same(store(tmp_path, precision="bf16").read("a"), tensors)
    with pytest.raises(CompatibilityError, match="precision 'bf16', expected 'fp8'"):
        store(tmp_path).read("a")
    assert store(tmp_path, precision="bf16").pack() == 1
    assert same(store(tmp_path, precision="bf16").read("a"), tensors)


@pytest.mark.parametrize("name", ["a.safetensors", "shard-1.safetensors"])
def test_damaged_files_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(FormatError, match=rf"{name} is not a (teacher record|shard).*Remove it"):
        store(tmp_path).read("a")


def test_a_full_disk_is_told_and_earlier_records_stay(tmp_path, monkeypatch):
    writer = store(tmp_path)
    writer.write("a", record(1))

    def full(self, data):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left") as caught:
            writer.write("b", record(2))
    assert caught.value.filename.endswith("b.safetensors")
    assert loose(tmp_path) == ["a"]
    assert same(writer.read("a"), record(1))
