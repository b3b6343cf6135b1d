"""Whatever a full disk says, it says with the name of the file, and as an OSError."""

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dspark.disk import naming, system_error
from dspark.training import shards
from dspark.training.world import ALONE

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_with_the_file() -> None:
    refused = pytest.raises(OSError, match="No space left on device: '/a/file'")
    with refused as caught, naming(Path("/a/file")), FULL.open("a") as file:
        file.write("x")
    assert caught.value.errno == errno.ENOSPC


def test_what_safetensors_tells_in_words_is_an_error_of_the_system(tmp_path: Path) -> None:
    """The words are those of the installed safetensors."""
    nowhere = tmp_path / "no" / "where"
    with pytest.raises(OSError, match="No such file or directory") as caught, naming(nowhere):
        save_file({"x": torch.zeros(3)}, nowhere)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(nowhere))


def test_other_errors_pass_and_known_names_stay(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^no$"), naming(tmp_path):
        raise ValueError("no")
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path):
        (tmp_path / "missing").read_text()
    assert caught.value.filename == str(tmp_path / "missing")
    assert system_error(ValueError("no")) is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_shards_that_cannot_be_written_are_an_ordinary_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises a BaseException of its own, which would pass the command line by as a traceback."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards.HuggingFaceStorageWriter, "write_data", full)
    with pytest.raises(OSError, match="No space left") as caught, naming(tmp_path):
        shards.save_shards(tmp_path, {"parameter.a": torch.zeros(4)}, ALONE)
    assert caught.value.filename == str(tmp_path)
