"""`decoder.cpp` as a shared library: compiled once per processor and source with the system's compiler, then cached."""

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import torch

from dspark.cache_root import cache_root
from dspark.errors import DependencyError
from dspark.nn.processor import processor_flags

SWITCH = "DSPARK_COMPILED"
"""Set this variable to 0 to do without compiled kernels."""

_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared")
_SECONDS = 120
_MAIN = "decoder.cpp"
_SOURCES = (_MAIN, "attention.h", "bytes.h", "laws.h", "pages.h", "products.h", "tiles.h", "vectors.h")


class ShapeStruct(Structure):
    """`Shape` of decoder.cpp."""

    _fields_ = (
        ("width", c_int64), ("inner", c_int64), ("heads", c_int64), ("kv_heads", c_int64), ("head_width", c_int64),
        ("packing", c_int64), ("eps", c_float),
    )  # fmt: skip


class LayerStruct(Structure):
    """`Layer` of decoder.cpp."""

    _fields_ = (
        ("input_norm", c_void_p), ("qkv", c_void_p), ("qkv_bias", c_void_p), ("query_norm", c_void_p),
        ("key_norm", c_void_p), ("output", c_void_p), ("output_bias", c_void_p), ("mlp_norm", c_void_p),
        ("gate_up", c_void_p), ("gate_up_bias", c_void_p), ("down", c_void_p), ("down_bias", c_void_p),
        ("window", c_int64),
    )  # fmt: skip


class ContextStruct(Structure):
    """`Context` of decoder.cpp."""

    _fields_ = (
        ("features", c_int64), ("combine", c_void_p), ("norm", c_void_p), ("keys_values", c_void_p),
        ("bias", c_void_p), ("key_norms", c_void_p),
    )  # fmt: skip


class MarkovHeadStruct(Structure):
    """`MarkovHead` of laws.h."""

    _fields_ = (
        ("rank", c_int64), ("width", c_int64), ("packing", c_int64), ("w1", c_void_p), ("w2", c_void_p),
        ("ids", c_void_p),
    )  # fmt: skip


def decoder_library() -> ctypes.CDLL:
    """The library, compiled now (about five seconds) if this machine has not done so before.

    Raises:
        DependencyError: it cannot be had here, and why.
    """
    library = _library_or_reason()
    if isinstance(library, str):
        raise DependencyError(library)
    return library


def decoder_sources() -> dict[str, bytes]:
    """The C++ files by name."""
    return {name: files(__package__).joinpath(name).read_bytes() for name in _SOURCES}


@cache
def _library_or_reason() -> ctypes.CDLL | str:
    """Tried once: a compiler that fails would fail again, seconds later."""
    try:
        return _open()
    except DependencyError as error:
        return str(error)
    except OSError as error:
        return f"the compiled decoder kernels cannot be kept or opened: {error}"


def _open() -> ctypes.CDLL:
    sources = decoder_sources()
    path = _compiled(sources)
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # damaged, or left by another system: once more from the source
        path.unlink()
        library = ctypes.CDLL(str(_compiled(sources)))
    library.dspark_tiles.argtypes, library.dspark_tiles.restype = (), c_int
    library.dspark_packed_size.argtypes, library.dspark_packed_size.restype = (c_int64, c_int64, c_int64), c_int64
    library.dspark_pack.argtypes = (c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int)
    library.dspark_linear.argtypes = (
        c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int,
    )  # fmt: skip
    library.dspark_best.argtypes = (
        c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int,
    )  # fmt: skip
    library.dspark_law_signals.argtypes = (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int)
    library.dspark_chain.argtypes = (
        POINTER(MarkovHeadStruct), c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int,
    )  # fmt: skip
    library.dspark_scratch.argtypes = (POINTER(ShapeStruct), c_int64, c_int64, c_int)
    library.dspark_scratch.restype = c_int64
    library.dspark_layers.argtypes = (
        POINTER(ShapeStruct), POINTER(LayerStruct), c_int64, c_void_p, c_int64, c_void_p, c_int64, c_void_p,
        c_void_p, POINTER(c_void_p), c_int64, c_void_p, c_int,
    )  # fmt: skip
    library.dspark_context.argtypes = (
        POINTER(ShapeStruct), POINTER(ContextStruct), c_int64, c_void_p, c_int64, c_void_p, c_void_p,
        c_void_p, c_void_p, c_int,
    )  # fmt: skip
    returnless = (
        library.dspark_pack, library.dspark_linear, library.dspark_best, library.dspark_law_signals,
        library.dspark_chain, library.dspark_layers, library.dspark_context,
    )  # fmt: skip
    for function in returnless:
        function.restype = None
    for packing in range(3 if library.dspark_tiles() else 1):
        _try_product(library, packing)
    return library


def _try_product(library: ctypes.CDLL, packing: int) -> None:
    """A product of odd sizes against torch: a library that this processor runs wrongly is worse than none."""
    rows, inputs, outputs = 19, 833, 37
    x = torch.arange(rows * inputs).view(rows, inputs).remainder(11).float()
    weight = torch.arange(outputs * inputs).view(outputs, inputs).remainder(3).sub(1).bfloat16()
    packed = torch.empty(library.dspark_packed_size(outputs, inputs, packing), dtype=torch.uint8)
    product = torch.empty(rows, outputs, dtype=torch.float32)
    library.dspark_pack(weight.data_ptr(), outputs, inputs, packed.data_ptr(), packing, 1)
    library.dspark_linear(
        x.data_ptr(), rows, inputs, packed.data_ptr(), None, outputs, product.data_ptr(), packing, 1
    )  # fmt: skip
    if not torch.allclose(product, x @ weight.float().T, atol=0.4):  # int8 rounds; a wrong sum is off by 1 or more
        raise DependencyError("the compiled decoder kernels compute wrongly on this processor; please report it")


def _compiled(sources: dict[str, bytes]) -> Path:
    _check_machine()
    made_from = "\n".join((*_FLAGS, *sorted(processor_flags()))).encode()
    digest = sha256(b"".join((made_from, *sources.values()))).hexdigest()
    path = cache_root() / "compiled" / f"decoder-{digest[:16]}.so"
    if not path.is_file():
        compiler = _compiler()
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiler, sources, path)
    return path


def _check_machine() -> None:
    if os.environ.get(SWITCH) == "0":
        raise DependencyError(f"compiled kernels are switched off by {SWITCH}=0")
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise DependencyError("compiled kernels are made for Linux on x86-64 only")
    if not {"avx2", "fma"} <= processor_flags():
        raise DependencyError("compiled kernels need a processor with AVX2 and FMA")


def _compiler() -> list[str]:
    """g++ or what CXX names; clang++ would bring a second OpenMP runtime, whose threads compete with torch's."""
    command = shlex.split(os.environ.get("CXX", "g++"))
    if not command or shutil.which(command[0]) is None:
        raise DependencyError("no C++ compiler found; install g++ for faster decoding on this processor")
    return command


def _compile(compiler: list[str], sources: dict[str, bytes], path: Path) -> None:
    """Compile into a temporary directory beside `path` and move the result there, whole."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        library = Path(scratch) / "decoder.so"
        for name, source in sources.items():
            (Path(scratch) / name).write_bytes(source)
        command = [*compiler, *_FLAGS, str(Path(scratch) / _MAIN), "-o", str(library)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            last = said.decode(errors="replace").strip().splitlines()[-1:]
            raise DependencyError(f"{compiler[0]} could not compile the decoder kernels: {' '.join(last)}") from error
        library.replace(path)
