"""Matrices in packed bfloat16, multiplied by a few rows at a time: a step is as long as one read of the weights.

Two packings: for the processor's vectors, whose arithmetic is float32, and for its matrix unit (AMX), which multiplies
bfloat16.
"""

import torch
from torch import Tensor

from dspark.errors import CompatibilityError, ConfigError, DependencyError
from dspark.nn.compiled.library import decoder_library


class CompiledLinear:
    """A matrix [out, in] in blocks for vectors, or in `tiles` for a matrix unit; `bias` [out] float32 or None."""

    __slots__ = ("_library", "bias", "inputs", "outputs", "packed", "tiles")

    def __init__(self, weight: Tensor, bias: Tensor | None, tiles: bool = False) -> None:
        library = decoder_library()
        plain = weight.detach().to(torch.bfloat16).contiguous()
        self.outputs, self.inputs = plain.shape
        self.tiles = tiles
        self.packed = plain.new_empty(library.dspark_packed_size(self.outputs, self.inputs, tiles))
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._library = library
        threads = torch.get_num_threads()
        library.dspark_pack(plain.data_ptr(), self.outputs, self.inputs, self.packed.data_ptr(), tiles, threads)

    def __call__(self, x: Tensor) -> Tensor:
        check_rows(x, self.inputs)
        x = x.contiguous()
        product = x.new_empty(*x.shape[:-1], self.outputs)
        bias = None if self.bias is None else self.bias.data_ptr()
        rows = x.numel() // self.inputs
        packed, threads = self.packed.data_ptr(), torch.get_num_threads()
        self._library.dspark_linear(
            x.data_ptr(), rows, self.inputs, packed, bias, self.outputs, product.data_ptr(), self.tiles, threads
        )  # fmt: skip
        return product

    def best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(largest output, which: the first of equals), each [N], of rows `x` [N, in]; outputs themselves are not kept.

        The largest is NaN where an output is not finite. Raises ConfigError for a matrix with a bias.
        """
        if self.bias is not None:
            raise ConfigError("the largest output is found for matrices without a bias only")
        check_rows(x, self.inputs)
        x = x.contiguous()
        top, place = x.new_empty(len(x)), x.new_empty(len(x), dtype=torch.int64)
        self._library.dspark_best(
            x.data_ptr(), len(x), self.inputs, self.packed.data_ptr(), self.outputs, top.data_ptr(), place.data_ptr(),
            self.tiles, torch.get_num_threads(),
        )  # fmt: skip
        return top, place


def check_rows(x: Tensor, width: int) -> None:
    """Refuse what compiled code would misread. Raises CompatibilityError unless `x` is float32 [..., width]."""
    if x.dtype is not torch.float32 or x.shape[-1] != width:
        raise CompatibilityError(f"found {x.dtype} {list(x.shape)}, expected torch.float32 [..., {width}]")


class CompiledKernel:
    """bfloat16 storage in compiled loops, row-invariant. Vectors compute in float32, exact for bfloat16 weights.

    With `tiles` the matrix unit multiplies: activations are rounded to bfloat16, sums stay float32, and up to 16 rows
    cost hardly more than one.
    """

    activation_dtype = torch.float32
    row_invariant = True

    def __init__(self, tiles: bool = False) -> None:
        self.name = "compiled-bf16" if tiles else "compiled"
        self.tiles = tiles

    @staticmethod
    def available(tiles: bool = False) -> bool:
        """Whether the library can be compiled, or was, and with `tiles` whether processor and system have them."""
        try:
            library = decoder_library()
        except DependencyError:
            return False
        return not tiles or bool(library.dspark_tiles())

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> CompiledLinear:
        """Store `weight` in bfloat16, rounding what is finer."""
        return CompiledLinear(weight, bias, self.tiles)
