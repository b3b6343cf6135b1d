"""Every kernel computes the same product; packed ones differ only by rounding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.errors import CompatibilityError, ConfigError, DependencyError
from dspark.nn import kernel_choice
from dspark.nn.compiled.linear import CompiledKernel, Packing
from dspark.nn.kernel_choice import check_int8, choose_kernel, sequence_kernel
from dspark.nn.linear import HalfKernel, OneDnnKernel, PlainKernel
from dspark.nn.processor import processor_flags
from tests.nn.rounding import rounded


def matrices(rows=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, bias = torch.randn(rows, 33, generator=generator), torch.randn(17, generator=generator)
    return x, (torch.randn(17, 33, generator=generator) * 0.1).bfloat16(), bias.bfloat16()


def large(rows, inputs, outputs):
    """Products of several parts of the depth, panels and tiles of rows, none of them whole."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, inputs, generator=generator)
    return x, (torch.randn(outputs, inputs, generator=generator) * 0.1).bfloat16()


SIZES = [(450, 37), (833, 150)]


def packed_kernels():
    kernels = [PlainKernel()]
    if HalfKernel.available():
        kernels.append(HalfKernel())
    if OneDnnKernel.available():
        kernels.append(OneDnnKernel())
    return kernels + [CompiledKernel(packing) for packing in Packing if CompiledKernel.available(packing)]


def factors(kernel, x, weight):
    """What a kernel multiplies: tiles take bfloat16, bytes eight bits of weights and fifteen of activations."""
    match kernel:
        case CompiledKernel(packing=Packing.TILES):
            return x.bfloat16().double(), weight.double()
        case CompiledKernel(packing=Packing.BYTES):
            return rounded(x, 127 * 254), rounded(weight)
    return x.double(), weight.double()


def row_invariant_kernels():
    return [kernel for kernel in packed_kernels() if kernel.row_invariant]


@pytest.mark.parametrize("kernel", packed_kernels(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_products_of_bfloat16_weights_are_exact_to_float32_rounding(kernel, with_bias, rows):
    x, weight, bias = matrices(rows)
    left, right = factors(kernel, x, weight)
    expected = left @ right.T + (bias.double() if with_bias else 0)
    found = kernel.pack(weight, bias if with_bias else None)(x)
    assert found.dtype is kernel.activation_dtype
    tie = 2e-5 if kernel.name == "compiled-int8" else 0  # an activation's last of fifteen bits may fall either way
    torch.testing.assert_close(found.double(), expected, atol=2e-6 + tie, rtol=1e-6)


@pytest.mark.parametrize("kernel", row_invariant_kernels(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("rows", [1, 16, 17, 49])
def test_large_products_are_exact_to_rounding_and_rows_of_them_do_not_depend_on_neighbours(
    kernel, inputs, outputs, rows
):
    x, weight = large(rows, inputs, outputs)
    left, right = factors(kernel, x, weight)
    linear = kernel.pack(weight)
    found = linear(x)
    tie = 1e-4 if kernel.name == "compiled-int8" else 1e-5
    torch.testing.assert_close(found.double(), left @ right.T, atol=tie, rtol=1e-5)
    for size in (1, 18):
        assert torch.equal(torch.cat([linear(part) for part in x.split(size)]), found)


@pytest.mark.parametrize("kernel", packed_kernels(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("empty", [[0], [5], [16], [0, 7, 16], list(range(17))])
def test_outputs_without_weights_are_zero_and_the_others_as_ever(kernel, empty):
    x, weight, _ = matrices(3)
    weight[empty] = 0
    left, right = factors(kernel, x, weight)
    torch.testing.assert_close(kernel.pack(weight)(x).double(), left @ right.T, atol=3e-5, rtol=1e-6)


@pytest.mark.parametrize("kernel", packed_kernels(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_spoils_its_output_alone(kernel, wrong):
    x, weight, _ = matrices(3)
    if kernel.name == "fp16":
        pytest.skip("FBGEMM saturates what it stores")
    weight[4, 9] = wrong
    finite = kernel.pack(weight)(x).isfinite()
    assert finite.all(0).tolist() == [output != 4 for output in range(17)]


@pytest.mark.parametrize("kernel", packed_kernels(), ids=lambda kernel: kernel.name)
def test_any_leading_axes_are_kept(kernel):
    x, weight, _ = matrices(12)
    linear = kernel.pack(weight)
    torch.testing.assert_close(linear(x.view(3, 4, 33)), linear(x).view(3, 4, 17), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(linear(x[5]), linear(x)[5], atol=1e-6, rtol=1e-6)
    assert linear(x[:0]).shape == (0, 17)


@pytest.mark.parametrize("kernel", packed_kernels(), ids=lambda kernel: kernel.name)
def test_packing_copies_or_keeps_but_never_changes_the_weights(kernel):
    x, weight, bias = matrices()
    before = weight.clone(), bias.clone()
    kernel.pack(weight, bias)(x)
    assert torch.equal(weight, before[0])
    assert torch.equal(bias, before[1])


@pytest.mark.parametrize("kernel", row_invariant_kernels(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 13])
def test_rows_do_not_depend_on_their_neighbours(kernel, rows):
    x, weight, _ = matrices(26)
    linear = kernel.pack(weight)
    assert torch.equal(torch.cat([linear(part) for part in x.split(rows)]), linear(x))


@pytest.mark.skipif(not OneDnnKernel.available(torch.bfloat16), reason="this processor or torch has no packed bfloat16")
def test_onednn_bfloat16_rounds_activations_only():
    x, weight, _ = matrices()
    expected = x.bfloat16().double() @ weight.double().T
    found = OneDnnKernel(torch.bfloat16).pack(weight)(x)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0.01)


def test_only_the_plain_kernel_lets_gradients_through():
    x, weight, _ = matrices()
    x.requires_grad_()
    PlainKernel().pack(weight)(x).sum().backward()
    torch.testing.assert_close(x.grad[0], weight.float().sum(0))


def test_automatic_choice():
    assert choose_kernel("auto", torch.float32).kernel.activation_dtype is torch.float32
    choice = choose_kernel("auto", torch.bfloat16, frozenset({"avx2"}))
    candidates = {"compiled": CompiledKernel, "fp16": HalfKernel, "onednn": OneDnnKernel}
    assert choice.kernel.name == next(name for name, kernel in candidates.items() if kernel.available())
    assert choice.reason


@pytest.mark.skipif(not CompiledKernel.available(Packing.TILES), reason="no matrix unit")
def test_a_matrix_unit_is_used_where_there_is_one():
    assert choose_kernel("auto", torch.bfloat16, frozenset({"avx2", "amx_bf16"})).kernel.name == "compiled-bf16"
    assert sequence_kernel("bf16", frozenset({"amx_bf16"})) == "compiled-bf16"


def test_whole_sequences_in_float32_or_without_bfloat16_instructions_take_the_automatic_kernel():
    assert sequence_kernel("fp32", frozenset({"amx_bf16"})) == "auto"
    assert sequence_kernel("bf16", frozenset({"avx2"})) == "auto"


def test_choices_by_name():
    assert choose_kernel("plain", torch.bfloat16).kernel.activation_dtype is torch.bfloat16
    with pytest.raises(ConfigError, match="kernel 'int3' does not exist; choose one of auto, plain"):
        choose_kernel("int3", torch.float32)  # type: ignore[arg-type]


def test_a_kernel_that_cannot_run_is_refused(monkeypatch):
    monkeypatch.setattr(HalfKernel, "available", staticmethod(lambda: False))
    with pytest.raises(ConfigError, match="'fp16' cannot run"):
        choose_kernel("fp16", torch.bfloat16)


def test_what_int8_lacks_is_said(monkeypatch):
    monkeypatch.setattr(CompiledKernel, "available", staticmethod(lambda packing: False))
    with pytest.raises(ConfigError, match=r"need a matrix unit \(AMX\).*; use dtype bf16"):
        check_int8()
    monkeypatch.setattr(kernel_choice, "decoder_library", refuse)
    with pytest.raises(ConfigError, match="need compiled kernels, and there is no compiler; use dtype bf16"):
        check_int8()


def refuse():
    raise DependencyError("there is no compiler")


def test_processor_flags_are_words():
    assert all(flag and " " not in flag for flag in processor_flags())


@pytest.mark.skipif(not CompiledKernel.available(), reason="no C++ compiler")
def test_the_compiled_product_refuses_what_it_would_misread():
    x, weight, _ = matrices()
    linear = CompiledKernel().pack(weight)
    for wrong in (x[:, :-1], x.double(), x.bfloat16()):
        with pytest.raises(CompatibilityError, match="expected torch.float32 \\[..., 33\\]"):
            linear(wrong)


@pytest.mark.parametrize("packing", Packing, ids=lambda packing: packing.name.lower())
@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), inputs=st.integers(1, 70), outputs=st.integers(1, 2_100), seed=st.integers(0, 99))
def test_the_largest_output_is_found_without_keeping_outputs(
    packing: Packing, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    """The same bits as the product has, the first of equals (small whole numbers), NaN where one is not finite."""
    if not CompiledKernel.available(packing):
        pytest.skip("no such kernel on this processor")
    random = torch.Generator().manual_seed(seed)
    weight = torch.randint(-2, 3, (outputs, inputs), generator=random).bfloat16()
    x = torch.randint(-2, 3, (rows, inputs), generator=random).float()
    linear = CompiledKernel(packing).pack(weight)
    best, tokens = linear.best(x)
    product = linear(x)
    assert torch.equal(best, product.amax(-1))
    assert tokens.tolist() == [row.tolist().index(row.max().item()) for row in product]
    x[-1, 0] = torch.nan
    assert linear.best(x)[0].isnan().tolist() == [False] * (rows - 1) + [True]
