"""A drafter's context in one compiled call: target features become keys and values of every layer.

Shapes: N rows, m taps, d width, L layers, K key/value heads, h head width.
"""

from ctypes import byref

import torch
from torch import Tensor

from dspark.nn.compiled.library import ContextStruct, decoder_library
from dspark.nn.compiled.linear import CompiledLinear, check_rows
from dspark.nn.compiled.rotary_table import RotaryTable
from dspark.nn.compiled.rows import Rows
from dspark.nn.compiled.stack import StackShape
from dspark.nn.rope import Rotary


class CompiledContext:
    """`combine` [d, m d] and `norm` [d] make the states whose `keys_values` [L 2K h, d] are normed by `key_norms`."""

    def __init__(
        self,
        shape: StackShape,
        combine: CompiledLinear,
        norm: Tensor,
        keys_values: CompiledLinear,
        key_norms: Tensor,
        rotary: Rotary,
    ) -> None:
        self._library = decoder_library()
        self._kept = (combine, norm, keys_values, key_norms)
        self._layers = len(key_norms)
        bias = None if keys_values.bias is None else keys_values.bias.data_ptr()
        self._shape = shape.struct()
        self._struct = ContextStruct(
            combine.inputs, combine.packed.data_ptr(), norm.data_ptr(), keys_values.packed.data_ptr(), bias,
            key_norms.data_ptr(),
        )  # fmt: skip
        self._row_floats = (shape.width, keys_values.outputs)
        self._rotary = RotaryTable(rotary)

    def extend(self, features: Tensor, rows: Rows) -> None:
        """Write keys and values of `features` [N, m d] where `rows` [N] say."""
        check_rows(features, self._struct.features)
        if len(features) == 0:
            return
        features, threads = features.contiguous(), torch.get_num_threads()
        count, (width, outputs) = len(features), self._row_floats
        scratch = torch.empty(count * (width + outputs) + threads * width, dtype=torch.float32)
        cos, sin = self._rotary.reach(1 + int(rows["position"].max()))
        self._library.dspark_context(
            byref(self._shape), byref(self._struct), self._layers, features.data_ptr(), count,
            rows.ctypes.data, cos.data_ptr(), sin.data_ptr(), scratch.data_ptr(), threads,
        )  # fmt: skip
