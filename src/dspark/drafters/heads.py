"""Sequential heads: the low-rank bias that the previous token puts on a slot's logits.

Every head computes a latent of rank R per slot from the hidden state h_k and e = W1[x_{k-1}]; the bias is W2 latent.
Shapes: leading axes [...] or [A, G] blocks and slots, d width, R rank, V vocabulary, V_draft draft vocabulary.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from dspark.drafters.config import DrafterConfig, HeadKind


class SequentialHead(Protocol):
    """What the drafter asks of a head: whole teacher-forced blocks in training, one step at a time in decoding."""

    def embed(self, previous: Tensor) -> Tensor:
        """e = W1[previous], [..., R], of target token ids [...]."""
        ...

    def latents(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """[A, G, R] from hidden [A, G, d] and e [A, G, R], from the first slot of each block on."""
        ...

    def step(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(latent [..., R], next state) of one slot; `state` is None at the first slot of a block."""
        ...

    def bias(self, latent: Tensor) -> Tensor:
        """W2 latent, [..., V_draft]."""
        ...

    def bias_at(self, latent: Tensor, ids: Tensor) -> Tensor:
        """The bias [..., K] of the draft ids [..., K] alone."""
        ...


class MarkovHead(nn.Module):
    """Vanilla head: latent = e. The bias depends on the previous token only (eq. 5 of the paper)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov_rank)
        self.markov_w2 = nn.Linear(config.markov_rank, config.draft_vocabulary, bias=False)

    def embed(self, previous: Tensor) -> Tensor:
        embedded: Tensor = self.markov_w1(previous)
        return embedded

    def bias(self, latent: Tensor) -> Tensor:
        bias: Tensor = self.markov_w2(latent)
        return bias

    def bias_at(self, latent: Tensor, ids: Tensor) -> Tensor:
        rows = nn.functional.embedding(ids, self.markov_w2.weight)
        return (rows @ latent.to(rows.dtype).unsqueeze(-1)).squeeze(-1)

    def latents(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        return embedded

    def step(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return embedded, None


class GatedHead(MarkovHead):
    """latent = sigmoid(Wg [h ; e] + b) * e."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size + config.markov_rank, config.markov_rank)

    def latents(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        return torch.sigmoid(self.gate_proj(torch.cat((hidden, embedded), dim=-1))) * embedded

    def step(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.latents(hidden, embedded), None


class RNNHead(MarkovHead):
    """Gated recurrence over the block: (g, c, o) = W [s ; e ; h] + b, s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c),
    latent = tanh(o). The output reads the state before its update; s_0 = 0."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.joint_proj = nn.Linear(2 * config.markov_rank + config.hidden_size, 3 * config.markov_rank)

    def latents(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        state, latents = None, []
        for slot in range(hidden.shape[-2]):
            latent, state = self.step(hidden[..., slot, :], embedded[..., slot, :], state)
            latents.append(latent)
        return torch.stack(latents, dim=-2)

    def step(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        state = torch.zeros_like(embedded) if state is None else state
        gate, candidate, output = self.joint_proj(torch.cat((state, embedded, hidden), dim=-1)).chunk(3, dim=-1)
        keep = torch.sigmoid(gate)
        return torch.tanh(output), keep * state + (1 - keep) * torch.tanh(candidate)


class SelectorHead(MarkovHead):
    """latent = (H h) * e: DFlash 2's selector, a gated head whose gate is linear and reads the hidden state only.

    W1 is its codebook of predecessors, W2 that of successors. Restricted to `candidates` it is the released one; over
    the whole vocabulary it is one more sequential head.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.hidden_projection = nn.Linear(config.hidden_size, config.markov_rank, bias=False)

    def latents(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        latents: Tensor = self.hidden_projection(hidden) * embedded
        return latents

    def step(self, hidden: Tensor, embedded: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.latents(hidden, embedded), None


HEADS: dict[HeadKind, type[MarkovHead]] = {
    HeadKind.VANILLA: MarkovHead,
    HeadKind.GATED: GatedHead,
    HeadKind.RNN: RNNHead,
    HeadKind.SELECTOR: SelectorHead,
}


def choose_among(base: Tensor, candidates: int, head: SequentialHead, latent: Tensor) -> Tensor:
    """Draft logits [..., V_draft] that leave only the `candidates` likeliest tokens of `base` [..., V_draft] a chance.

    Those get the head's bias, all others -inf. Which they are depends on `base` alone, never on a token drawn.
    """
    unary, ids = base.topk(candidates, dim=-1)
    return torch.full_like(base, -torch.inf).scatter(-1, ids, (unary + head.bias_at(latent, ids)).to(base.dtype))


def build_head(config: DrafterConfig) -> MarkovHead | None:
    """The configured head, or None at rank 0 (DFlash)."""
    return HEADS[config.markov_head_type](config) if config.markov_rank else None
