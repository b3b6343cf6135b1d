"""Which kernel reads pages, by device, numbers and what is installed; no device is needed to decide."""

import pytest
import torch

from dspark.errors import DependencyError
from dspark.nn import paged_attention
from dspark.nn.device import CPU
from dspark.nn.paged_attention import choose_attention, flash_attention, gathered_attention, reads_pages

CUDA, BF16 = torch.device("cuda"), torch.bfloat16


@pytest.fixture
def machine(monkeypatch):
    """A GPU of a compute capability with packages installed."""

    def of(major, *packages):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
        monkeypatch.setattr(paged_attention, "_installed", lambda package: package in packages)

    return of


@pytest.mark.parametrize(
    ("major", "packages", "dtype", "width", "expected"),
    [
        (9, ("flash_attn_interface",), BF16, 64, "FA3"),
        (9, ("flash_attn_interface",), torch.float32, 64, None),
        (9, ("flash_attn_interface",), BF16, 512, None),
        (9, ("flash_attn.cute",), BF16, 64, None),  # FA4 reads pages on Blackwell only
        (10, ("flash_attn.cute",), BF16, 64, "FA4"),
        (10, ("flash_attn_interface",), BF16, 64, None),
        (8, ("flash_attn_interface", "flash_attn.cute"), BF16, 64, None),
        (9, (), BF16, 64, None),
    ],
)
def test_a_kernel_must_fit_device_numbers_and_packages(machine, major, packages, dtype, width, expected):
    machine(major, *packages)
    assert reads_pages(CUDA, dtype, width) == expected


def test_without_a_kernel_torch_gathers(machine):
    machine(9)
    assert choose_attention(CUDA, BF16, 64) is gathered_attention
    assert choose_attention(CPU, BF16, 64) is gathered_attention


def test_a_kernel_is_switched_on_once(machine, monkeypatch):
    machine(9, "flash_attn_interface")
    active = []
    monkeypatch.setattr("torch.nn.attention.current_flash_attention_impl", lambda: active[-1] if active else None)
    monkeypatch.setattr("torch.nn.attention.activate_flash_attention_impl", active.append)
    assert [choose_attention(CUDA, BF16, 64) for _ in range(2)] == [flash_attention] * 2
    assert active == ["FA3"]


def test_a_kernel_that_torch_cannot_use_is_an_error(machine, monkeypatch):
    def refuse(kernel):
        raise ImportError("undefined symbol")

    machine(9, "flash_attn_interface")
    monkeypatch.setattr("torch.nn.attention.activate_flash_attention_impl", refuse)
    with pytest.raises(DependencyError, match="FA3 is installed, but torch .* cannot use it .undefined symbol."):
        choose_attention(CUDA, BF16, 64)
