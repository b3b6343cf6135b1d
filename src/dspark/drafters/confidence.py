"""The confidence head: c_k = sigmoid(logit_k), the chance that draft k is accepted given that its prefix was."""

import torch
from torch import Tensor, nn

from dspark.drafters.config import DrafterConfig


class ConfidenceHead(nn.Module):
    """logit = w [h_k ; W1 x_{k-1}] + b, or w h_k + b. It never reads the token about to be drawn (contract 2)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        extra = config.markov_rank if config.confidence_head_with_markov else 0
        self.proj = nn.Linear(config.hidden_size + extra, 1)

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """Logits [...] of hidden states [..., d] and, with Markov, embeddings [..., R] of the previous tokens."""
        states = hidden if embedded is None else torch.cat((hidden, embedded), dim=-1)
        logits: Tensor = self.proj(states).squeeze(-1)
        return logits
