"""Finds tensors that were made on another device than the rest."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OneDevice(TorchDispatchMode):
    """Refuses operations, but for copies, on tensors of two devices. On `meta`, torch itself lets some of them pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        devices = {tensor.device.type for tensor in tensors}
        assert len(devices) < 2 or func in COPIES, f"{func} mixes {sorted(devices)}"
        return func(*args, **(kwargs or {}))
