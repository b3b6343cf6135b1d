"""Packed matrices: a product of few rows is as long as one read of the weights."""

from enum import IntEnum

import torch
from torch import Tensor

from dspark.errors import CompatibilityError, ConfigError, DependencyError
from dspark.nn.compiled.library import decoder_library


class Packing(IntEnum):
    """How weights lie in memory, by the numbers of products.h."""

    VECTORS = 0
    """bfloat16, for the processor's vectors, whose arithmetic is float32."""
    TILES = 1
    """bfloat16, for its matrix unit (AMX), which multiplies bfloat16."""
    BYTES = 2
    """int8 and a scale for each output, for its matrix unit: half the reads."""

    @property
    def tiles(self) -> bool:
        """Whether the matrix unit multiplies."""
        return self is not Packing.VECTORS


class CompiledLinear:
    """A matrix [out, in], packed; `bias` [out] float32 or None."""

    __slots__ = ("_library", "bias", "inputs", "outputs", "packed", "packing")

    def __init__(self, weight: Tensor, bias: Tensor | None, packing: Packing = Packing.VECTORS) -> None:
        library = decoder_library()
        plain = weight.detach().to(torch.bfloat16).contiguous()
        self.outputs, self.inputs = plain.shape
        self.packing = packing
        size = library.dspark_packed_size(self.outputs, self.inputs, packing)
        self.packed = torch.empty(size, dtype=torch.uint8)
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._library = library
        threads = torch.get_num_threads()
        library.dspark_pack(plain.data_ptr(), self.outputs, self.inputs, self.packed.data_ptr(), packing, threads)

    def __call__(self, x: Tensor) -> Tensor:
        check_rows(x, self.inputs)
        x = x.contiguous()
        product = x.new_empty(*x.shape[:-1], self.outputs)
        bias = None if self.bias is None else self.bias.data_ptr()
        rows = x.numel() // self.inputs
        packed, threads = self.packed.data_ptr(), torch.get_num_threads()
        self._library.dspark_linear(
            x.data_ptr(), rows, self.inputs, packed, bias, self.outputs, product.data_ptr(), self.packing, threads
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
            self.packing, torch.get_num_threads(),
        )  # fmt: skip
        return top, place


def check_rows(x: Tensor, width: int) -> None:
    """Refuse what compiled code would misread. Raises CompatibilityError unless `x` is float32 [..., width]."""
    if x.dtype is not torch.float32 or x.shape[-1] != width:
        raise CompatibilityError(f"found {x.dtype} {list(x.shape)}, expected torch.float32 [..., {width}]")


PACKINGS = {"compiled": Packing.VECTORS, "compiled-bf16": Packing.TILES, "compiled-int8": Packing.BYTES}
"""What each compiled kernel's name stands for."""


class CompiledKernel:
    """Compiled loops, row-invariant; up to 16 rows cost hardly more than one where a matrix unit multiplies.

    Vectors compute in float32, exact for bfloat16 weights. Tiles round activations to bfloat16, sums stay float32.
    Bytes round weights to int8 by each output's largest, activations to 15 bits by each row's: another model, which is
    then the target whose law is kept.
    """

    activation_dtype = torch.float32
    row_invariant = True

    def __init__(self, packing: Packing = Packing.VECTORS) -> None:
        self.name = next(name for name, own in PACKINGS.items() if own is packing)
        self.packing = packing

    @staticmethod
    def available(packing: Packing = Packing.VECTORS) -> bool:
        """Whether the library can be compiled, or was, and whether processor and system have what `packing` is for."""
        try:
            library = decoder_library()
        except DependencyError:
            return False
        return not packing.tiles or bool(library.dspark_tiles())

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> CompiledLinear:
        """Store `weight` in bfloat16, rounding what is finer, or in int8."""
        return CompiledLinear(weight, bias, self.packing)
