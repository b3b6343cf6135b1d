"""Matrices in packed bfloat16, multiplied by a few rows at a time: a step is as long as one read of the weights."""

import torch
from torch import Tensor

from dspark.errors import CompatibilityError, DependencyError
from dspark.nn.compiled.library import decoder_library


class CompiledLinear:
    """A matrix [out, in] whose blocks are packed for the processor's vectors; `bias` [out] float32 or None."""

    __slots__ = ("_multiply", "bias", "inputs", "outputs", "packed")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        library = decoder_library()
        plain = weight.detach().to(torch.bfloat16).contiguous()
        self.outputs, self.inputs = plain.shape
        self.packed = torch.empty_like(plain)
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._multiply = library.dspark_linear
        threads = torch.get_num_threads()
        library.dspark_pack(plain.data_ptr(), self.outputs, self.inputs, self.packed.data_ptr(), threads)

    def __call__(self, x: Tensor) -> Tensor:
        check_rows(x, self.inputs)
        x = x.contiguous()
        product = x.new_empty(*x.shape[:-1], self.outputs)
        bias = None if self.bias is None else self.bias.data_ptr()
        rows = x.numel() // self.inputs
        packed, threads = self.packed.data_ptr(), torch.get_num_threads()
        self._multiply(
            x.data_ptr(), rows, self.inputs, packed, bias, self.outputs, product.data_ptr(), threads
        )  # fmt: skip
        return product


def check_rows(x: Tensor, width: int) -> None:
    """Refuse what compiled code would misread. Raises CompatibilityError unless `x` is float32 [..., width]."""
    if x.dtype is not torch.float32 or x.shape[-1] != width:
        raise CompatibilityError(f"found {x.dtype} {list(x.shape)}, expected torch.float32 [..., {width}]")


class CompiledKernel:
    """bfloat16 storage, float32 arithmetic in compiled loops: exact for bfloat16 weights, and row-invariant."""

    name = "compiled"
    activation_dtype = torch.float32
    row_invariant = True

    @staticmethod
    def available() -> bool:
        """Whether the library can be compiled, or was."""
        try:
            decoder_library()
        except DependencyError:
            return False
        return True

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> CompiledLinear:
        """Store `weight` in bfloat16, rounding what is finer."""
        return CompiledLinear(weight, bias)
