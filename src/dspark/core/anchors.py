"""Where blocks may hang, and what their slots are taught. T packed tokens, A anchors, G slots (gamma)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.core.masks import BlockLayout
from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BlockLabels:
    """What the slots of A blocks read and should say, each [A, G].

    `previous` is the token before each slot's label (slot 0: the anchor itself), `targets` the label, `supervised`
    the contiguous prefix of slots whose labels exist and count.
    """

    previous: Tensor
    targets: Tensor
    supervised: Tensor


def anchor_candidates(loss_mask: Tensor) -> Tensor:
    """Ascending positions i of one document with `loss_mask` [S] at i and i + 1: a supervised token with a label."""
    mask = loss_mask.bool()
    return (mask[:-1] & mask[1:]).nonzero().squeeze(-1)


def sample_anchors(loss_mask: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` candidates of one document, uniform without replacement, ascending. Raises ConfigError if < 1."""
    if count < 1:
        raise ConfigError(f"the number of anchors per document is {count}; expected at least 1")
    candidates = anchor_candidates(loss_mask)
    order = torch.randperm(len(candidates), generator=generator, device=generator.device)
    return candidates[order[:count].to(candidates.device)].sort().values


def sample_packed_anchors(loss_mask: Tensor, lengths: Sequence[int], count: int, generator: torch.Generator) -> Tensor:
    """Packed indices of up to `count` anchors in each of the documents of `lengths` tokens; `loss_mask` [T] covers all.

    Sampling per document keeps long documents from crowding out short ones, and a mask that happens to be set on both
    sides of a boundary from making an anchor there.
    """
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0).tolist()
    masks = loss_mask.tensor_split(torch.tensor(lengths).cumsum(0)[:-1])
    return torch.cat([
        start + sample_anchors(mask, count, generator) for start, mask in zip(starts, masks, strict=True)
    ])  # fmt: skip


def block_labels(token_ids: Tensor, loss_mask: Tensor, layout: BlockLayout) -> BlockLabels:
    """Labels of all slots, from ids and mask [T] of the packed documents: slot k of anchor a is taught token a + k + 1.

    Supervision stops at the first label that lies outside the anchor's document or has no loss, and stays off behind
    it. Ids of unsupervised slots are in range but mean nothing.
    """
    places = layout.anchors[:, None] + torch.arange(layout.gamma + 1, device=token_ids.device)
    inside = places < len(token_ids)
    places = places.clamp(max=len(token_ids) - 1)
    documents, tokens = layout.documents(), token_ids[places]
    inside &= documents[places] == documents[layout.anchors][:, None]
    counts = (inside & loss_mask.bool()[places])[:, 1:]
    return BlockLabels(tokens[:, :-1], tokens[:, 1:], counts.int().cumprod(dim=-1).bool())
