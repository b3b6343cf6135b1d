"""What a draft law says of itself, read in one pass. Shapes: N rows, V_draft draft vocabulary."""

import torch
from torch import Tensor

from dspark.errors import DependencyError
from dspark.nn.compiled.library import decoder_library

LIMIT = 16.0
"""Log-odds beyond it are cut: sigmoid(16) is 1 - 1e-7."""


def law_signals(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(log-odds of the largest probability, cut at +-16, entropy in nats), each [N], of laws of `logits` [N, V_draft].

    A row whose every token is masked has no law: its signals mean nothing.
    """
    try:
        library = decoder_library()
    except DependencyError:
        return plain_law_signals(logits)
    if logits.dtype is not torch.float32 or logits.device.type != "cpu":
        return plain_law_signals(logits)
    rows = logits.contiguous()
    peak, entropy = rows.new_empty(len(rows)), rows.new_empty(len(rows))
    library.dspark_law_signals(
        rows.data_ptr(), *rows.shape, peak.data_ptr(), entropy.data_ptr(), torch.get_num_threads()
    )  # fmt: skip
    return peak.clamp_(-LIMIT, LIMIT), entropy


def plain_law_signals(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The same by torch."""
    best, place = logits.max(dim=-1, keepdim=True)
    shifted = logits - best
    weights = shifted.exp()
    others = weights.scatter(-1, place, 0.0).sum(dim=-1)
    total = 1 + others
    products = (weights * shifted.masked_fill(weights == 0, 0.0)).sum(dim=-1)
    peak = -others.clamp_min(torch.finfo(torch.float32).tiny).log()
    return peak.clamp(-LIMIT, LIMIT), total.log() - products / total
