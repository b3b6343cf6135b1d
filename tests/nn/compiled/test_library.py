"""What happens where the kernels cannot be compiled, and that compiling happens once."""

import platform
import shutil

import pytest
import torch

from dspark.errors import DependencyError
from dspark.nn.compiled import library
from dspark.nn.compiled.linear import CompiledKernel
from dspark.nn.kernel_choice import choose_kernel
from dspark.nn.linear import OneDnnKernel
from dspark.nn.processor import processor_flags

compiles = pytest.mark.skipif(not CompiledKernel.available(), reason="kernels do not compile here: no C++ compiler")


@pytest.fixture
def untried(monkeypatch, tmp_path):
    """A process that has not looked for the library yet, with an empty cache; what it compiles is not optimised."""
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))
    monkeypatch.setattr(library, "_FLAGS", ("-O0", *library._FLAGS[1:]))
    library._library_or_reason.cache_clear()
    yield tmp_path
    library._library_or_reason.cache_clear()


def test_switched_off_the_choice_falls_back_and_says_why(untried, monkeypatch):
    monkeypatch.setenv("DSPARK_COMPILED", "0")
    choice = choose_kernel("auto", torch.bfloat16, frozenset({"avx2"}))
    assert choice.kernel.name != "compiled"
    assert not CompiledKernel.available()
    if choice.kernel.name == "fp16":
        assert "switched off by DSPARK_COMPILED=0" in choice.reason


@compiles
def test_a_compiler_that_fails_is_named_and_not_tried_again(untried, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(DependencyError, match="false could not compile"):
        library.decoder_library()
    monkeypatch.delenv("CXX")
    with pytest.raises(DependencyError, match="false could not compile"):
        library.decoder_library()
    assert list((untried / "compiled").iterdir()) == []


def test_without_it_native_bfloat16_is_next(untried, monkeypatch):
    monkeypatch.setenv("DSPARK_COMPILED", "0")
    choice = choose_kernel("auto", torch.bfloat16, frozenset({"avx512_bf16"}))
    assert (choice.kernel.name == "onednn-bf16") == OneDnnKernel.available(torch.bfloat16)


@compiles
def test_a_library_that_computes_wrongly_is_refused(untried, monkeypatch):
    monkeypatch.setattr(library.torch, "allclose", lambda *_, **__: False)
    with pytest.raises(DependencyError, match="compute wrongly on this processor"):
        library.decoder_library()


@compiles
def test_without_a_compiler_the_cure_is_named(untried, monkeypatch):
    monkeypatch.setattr(library.shutil, "which", lambda name: None)
    with pytest.raises(DependencyError, match="install g\\+\\+"):
        library.decoder_library()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_with_a_compiler_they_compile():
    """Or else every test of compiled kernels would be skipped unnoticed."""
    if platform.machine() == "x86_64" and "fma" in processor_flags():
        library.decoder_library()


@compiles
def test_a_cache_that_cannot_be_written_is_a_reason_to_do_without(untried, monkeypatch):
    (untried / "file").write_text("")
    monkeypatch.setenv("DSPARK_CACHE", str(untried / "file"))
    with pytest.raises(DependencyError, match="cannot be kept or opened"):
        library.decoder_library()


@compiles
@pytest.mark.slow
def test_a_damaged_library_is_compiled_again(untried):
    compiled = library._compiled(library.decoder_sources())
    compiled.write_bytes(b"damaged")
    library.decoder_library()
    assert compiled.stat().st_size > 1000


@compiles
@pytest.mark.slow
def test_the_library_is_compiled_once_and_found_again(untried, monkeypatch):
    library.decoder_library()
    (compiled,) = (untried / "compiled").iterdir()
    monkeypatch.setattr(library, "_compile", lambda *arguments: pytest.fail("compiled again"))
    library._library_or_reason.cache_clear()
    library.decoder_library()
    assert list((untried / "compiled").iterdir()) == [compiled]
    monkeypatch.setenv("CXX", "no-such-compiler")
    library._library_or_reason.cache_clear()
    library.decoder_library()
