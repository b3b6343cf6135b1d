"""A stack of decoder layers in one compiled call. T rows, d width, H query and K key/value heads, h head width."""

from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.nn.compiled.library import LayerStruct, ShapeStruct, decoder_library
from dspark.nn.compiled.linear import CompiledLinear, Packing
from dspark.nn.compiled.rotary_table import RotaryTable
from dspark.nn.compiled.rows import Rows
from dspark.nn.pages import PageLayout, PagePool
from dspark.nn.rope import Rotary

CHUNK = 128
"""Rows of one call: their activations fit the second-level cache, and weights are read once for all of them."""


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes that all layers share; `inner` is the width between the MLP's products, `packing` that of all matrices."""

    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    eps: float
    packing: Packing = Packing.VECTORS

    def struct(self) -> ShapeStruct:
        """As decoder.cpp takes it."""
        return ShapeStruct(self.width, self.inner, self.heads, self.kv_heads, self.head_width, self.packing, self.eps)


@dataclass(frozen=True, slots=True)
class StackLayer:
    """Weights of a pre-norm layer: `qkv` [(H + 2K) h, d], `gate_up` [2 f, d], norms float32. `window` None sees all."""

    input_norm: Tensor
    qkv: CompiledLinear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: CompiledLinear
    mlp_norm: Tensor
    gate_up: CompiledLinear
    down: CompiledLinear
    window: int | None = None

    def struct(self) -> LayerStruct:
        """Addresses of the weights, which live as long as this layer."""
        return LayerStruct(
            _address(self.input_norm), _address(self.qkv.packed), _address(self.qkv.bias), _address(self.query_norm),
            _address(self.key_norm), _address(self.output.packed), _address(self.output.bias),
            _address(self.mlp_norm), _address(self.gate_up.packed), _address(self.gate_up.bias),
            _address(self.down.packed), _address(self.down.bias), self.window or 0,
        )  # fmt: skip


class CompiledStack:
    """Layers of one shape; `rotary` turns queries and keys of every head."""

    def __init__(self, shape: StackShape, layers: Sequence[StackLayer], rotary: Rotary) -> None:
        self._library = decoder_library()
        self.shape = shape
        self._shape = shape.struct()
        self._kept = tuple(layers)
        self._layers = (LayerStruct * len(layers))(*(layer.struct() for layer in layers))
        self._rotary = RotaryTable(rotary)

    def new_pages(self, pages: int) -> PagePool:
        """Keys and values in the layout that this stack reads."""
        shape = self.shape
        layout = PageLayout.TILES if shape.packing.tiles else PageLayout.VECTORS
        return PagePool(pages, len(self._kept), shape.kv_heads, shape.head_width, layout)

    def run(self, x: Tensor, rows: Rows, taps: Mapping[int, Tensor] | None = None, block: int = 1) -> Tensor:
        """Output [N, d] of the last layer for `x` [N, d], each row where `rows` [N] says; keys and values are written.

        Rows of a request come in order, since a chunk of rows may look at the one before; `block` rows that see each
        other are never parted. `taps` maps layers to the tensors [N, d] (rows may be strided, all alike) that receive
        their outputs.
        """
        x = x.clone(memory_format=torch.contiguous_format)
        chunk = max(CHUNK // block, 1) * block
        for first in range(0, len(x), chunk):
            part = slice(first, first + chunk)
            self._call(x[part], rows[part], {layer: tap[part] for layer, tap in (taps or {}).items()})
        return x

    def _call(self, x: Tensor, rows: Rows, taps: Mapping[int, Tensor]) -> None:
        visible, threads = int(rows["visible"].max()), torch.get_num_threads()
        floats = self._library.dspark_scratch(byref(self._shape), len(x), visible, threads)
        scratch = torch.empty(floats, dtype=torch.float32)  # of this call alone: the lock of Python is not held in it
        cos, sin = self._rotary.reach(visible)
        addresses = (c_void_p * len(self._layers))(*(_address(taps.get(k)) for k in range(len(self._layers))))
        stride = next((tap.stride(0) for tap in taps.values()), 0)
        self._library.dspark_layers(
            byref(self._shape), self._layers, len(self._layers), x.data_ptr(), len(x), rows.ctypes.data, visible,
            cos.data_ptr(), sin.data_ptr(), addresses, stride, scratch.data_ptr(), threads,
        )  # fmt: skip


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
