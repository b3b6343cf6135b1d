"""The yardstick: a training step as a careful reader of the paper would write it first.

One padded row per answer, `anchors` blocks in each, one dense mask over [context ; blocks] for scaled dot-product
attention, logits of the whole vocabulary at every slot, the target's whole law from its last hidden states, and the
paper's loss as `core.losses` spells it. float32 throughout, AdamW. The drafter's modules are the trained ones.

Shapes: B rows, S padded tokens, A anchors a row, G slots, d width, w = m * d.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.step_problem import Document
from dspark.core.losses import block_loss
from dspark.drafters.dspark import DSpark


@dataclass(frozen=True, slots=True)
class Rows:
    """A padded batch: `features` [B, S, w], `token_ids` [B, S], the target's `last_hidden` [B, S, d], `anchors` [B, A].

    `previous`, `targets` and `supervised` [B, A, G] are what slots read, are taught, and whether they count; nothing
    of a padded anchor does.
    """

    features: Tensor
    token_ids: Tensor
    last_hidden: Tensor
    anchors: Tensor
    previous: Tensor
    targets: Tensor
    supervised: Tensor


def pad_rows(documents: Sequence[Document], anchors: Sequence[Tensor], gamma: int, length: int | None = None) -> Rows:
    """Rows of `length` tokens, by default as many as the longest document has."""
    tokens = [torch.tensor(document.answer.token_ids) for document in documents]
    real = torch.tensor([len(row) for row in tokens])
    size, width = max(length or 0, int(real.max())), max(len(places) for places in anchors)
    token_ids = torch.stack([F.pad(row, (0, size - len(row))) for row in tokens])
    features = torch.stack([F.pad(d.record.features.float(), (0, 0, 0, size - n)) for d, n in _sized(documents)])
    last_hidden = torch.stack([F.pad(d.last_hidden, (0, 0, 0, size - n)) for d, n in _sized(documents)])
    padded = torch.stack([F.pad(places, (0, width - len(places))) for places in anchors])
    kept = torch.stack([torch.arange(width) < len(places) for places in anchors])
    places = padded[..., None] + torch.arange(gamma + 1)
    inside = (places < real[:, None, None])[..., 1:] & kept[..., None]
    row = torch.arange(len(tokens))[:, None, None]
    labels = token_ids[row, places.clamp(max=size - 1)]
    return Rows(features, token_ids, last_hidden, padded, labels[..., :-1], labels[..., 1:], inside)


def _sized(documents: Sequence[Document]) -> list[tuple[Document, int]]:
    return [(document, len(document.answer.token_ids)) for document in documents]


def dense_mask(anchors: Tensor, tokens: int, gamma: int) -> Tensor:
    """[B, A * G, S + A * G]: context strictly before the anchor, and the slots of the own block."""
    before = torch.arange(tokens) < anchors.repeat_interleave(gamma, dim=1)[..., None]
    block = torch.arange(anchors.shape[1]).repeat_interleave(gamma)
    own = (block[:, None] == block).expand(len(anchors), -1, -1)
    return torch.cat((before, own), dim=-1)


def block_states(drafter: DSpark, rows: Rows) -> Tensor:
    """Hidden states [B, A, G, d] of all slots."""
    batch, anchors, gamma = rows.supervised.shape
    context = drafter.context(rows.features)
    context_rope = drafter.rotary.at(torch.arange(context.shape[1]))
    positions = (rows.anchors[..., None] + torch.arange(gamma)).flatten(1)
    rope = drafter.rotary.at(positions)
    mask = dense_mask(rows.anchors, context.shape[1], gamma)[:, None]
    x = drafter.embed_blocks(rows.token_ids.gather(1, rows.anchors).flatten(), gamma).view(batch, anchors * gamma, -1)
    for layer in drafter.draft_layers():
        keys, values = layer.self_attn.keys_values(context, context_rope)

        def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor = keys, values: Tensor = values) -> Tensor:
            groups = q.shape[2] // k.shape[2]
            all_keys = torch.cat((keys, k), dim=1).repeat_interleave(groups, dim=2).transpose(1, 2)
            all_values = torch.cat((values, v), dim=1).repeat_interleave(groups, dim=2).transpose(1, 2)
            return F.scaled_dot_product_attention(q.transpose(1, 2), all_keys, all_values, mask).transpose(1, 2)

        x = layer(x, rope, attend)
    return drafter.norm(x).view(batch, anchors, gamma, -1)


def loss(drafter: DSpark, rows: Rows) -> Tensor:
    """The paper's loss of all supervised slots."""
    hidden, previous = block_states(drafter, rows).flatten(0, 1), rows.previous.flatten(0, 1)
    logits = drafter.draft_logits(hidden, previous)
    gamma = previous.shape[1]
    # The law of the token at a label is told by the state one before it: anchor + slot.
    before = (rows.anchors[..., None] + torch.arange(gamma)).clamp(max=rows.last_hidden.shape[1] - 1)
    states = rows.last_hidden[torch.arange(len(before))[:, None, None], before].flatten(0, 1)
    with torch.no_grad():
        target_logits = F.linear(states, drafter.head)
    targets, supervised = rows.targets.flatten(0, 1), rows.supervised.flatten(0, 1)
    return block_loss(logits, target_logits, targets, supervised, drafter.confidence_logits(hidden, previous)).total


def train_step(drafter: DSpark, optimiser: torch.optim.Optimizer, rows: Rows) -> float:
    """One update; the loss before it."""
    optimiser.zero_grad()
    value = loss(drafter, rows)
    value.backward()
    nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
    optimiser.step()
    return value.item()
