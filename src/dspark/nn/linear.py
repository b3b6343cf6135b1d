"""Matrix products with constant weights: one seam, several packings."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Linear(Protocol):
    """x [..., in] -> [..., out] with constant weights."""

    def __call__(self, x: Tensor) -> Tensor: ...


class LinearKernel(Protocol):
    """A way to store and multiply constant matrices; products take and return `activation_dtype`.

    `row_invariant`: a row of the result has the same bits whatever other rows are multiplied with it.
    """

    name: str
    activation_dtype: torch.dtype
    row_invariant: bool

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Store `weight` [out, in] and `bias` [out]."""
        ...


class PlainLinear:
    """An unpacked matrix multiplied by torch; the only one that autograd can pass through."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PlainKernel:
    """torch's own product in one dtype, without packing."""

    name = "plain"
    row_invariant = False

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.activation_dtype = dtype

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Keep `weight` and `bias` in the activation dtype."""
        dtype = self.activation_dtype
        return PlainLinear(weight.to(dtype), None if bias is None else bias.to(dtype))


class HalfLinear:
    """A matrix that FBGEMM stores in float16 and multiplies in float32."""

    __slots__ = ("_multiply", "_packed")

    def __init__(self, packed: Any) -> None:
        self._packed = packed
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._multiply(x.unsqueeze(0) if x.dim() == 1 else x, self._packed)
        return product.squeeze(0) if x.dim() == 1 else product


class HalfKernel:
    """float16 storage, float32 arithmetic (FBGEMM): half the reads of float32, which bound a step of few rows.

    bfloat16 weights survive exactly down to 7.6e-6; smaller ones are off by at most 3e-8.
    """

    name = "fp16"
    activation_dtype = torch.float32
    row_invariant = False

    @staticmethod
    def available() -> bool:
        """Whether this torch carries FBGEMM."""
        return "fbgemm" in torch.backends.quantized.supported_engines

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Store `weight` in float16; values beyond 65,504 saturate."""
        wide_bias = None if bias is None else bias.float()
        return HalfLinear(torch.ops.quantized.linear_prepack_fp16(weight.float(), wide_bias))


class OneDnnLinear:
    """A matrix in oneDNN's blocked layout."""

    __slots__ = ("_bias", "_dtype", "_multiply", "_packed")

    def __init__(self, packed: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._packed = packed
        self._bias = bias
        self._dtype = dtype
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._multiply(x.to(self._dtype), self._packed, self._bias, "none", [], "")
        return product.float()


class OneDnnKernel:
    """oneDNN's packed product in float32, or in bfloat16 where the processor has instructions for it.

    Activations stay float32 outside the product. Float32 products are row-invariant.
    """

    activation_dtype = torch.float32

    _PACKED_FOR = 8
    """Rows that the blocked layout is chosen for; other row counts work as well."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.name = "onednn" if dtype is torch.float32 else "onednn-bf16"
        self.row_invariant = dtype is torch.float32
        self.dtype = dtype

    @classmethod
    def available(cls, dtype: torch.dtype = torch.float32) -> bool:
        """Whether this torch and processor multiply packed `dtype` matrices: a small product is tried."""
        if not torch._C._has_mkldnn or (dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            return False
        ones = torch.ones(16, 16)
        try:
            product = cls(dtype).pack(ones)(ones)
        except RuntimeError:
            return False
        return torch.equal(product, 16 * ones)

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Copy `weight` into the blocked layout."""
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(self.dtype).contiguous(), self._PACKED_FOR)
        return OneDnnLinear(packed, None if bias is None else bias.to(self.dtype), self.dtype)
