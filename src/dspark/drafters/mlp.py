"""The feed-forward half of a draft layer: dense, or a mixture of experts.

Shapes: leading axes [...] are slots of blocks, N of them; d width, E routed experts, k active ones.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dspark.drafters.config import DrafterConfig
from dspark.drafters.ingredients import Experts

BIAS_SPEED = 1e-3
"""How far a step moves the bias of an expert with too much or too little load (DeepSeek-V3's gamma)."""


class DraftMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class MixtureOfExperts(nn.Module):
    """shared(x) + sum over the k chosen experts of g_i expert_i(x), as in DeepSeek-V3 (section 2.1.2 of its report).

    Scores are s = sigmoid(W x). The k experts with the largest s + b serve the slot, with weights s / (sum of the
    chosen s). b balances the load without an auxiliary loss: it decides who is chosen but not how much they count,
    gets no gradient, and moves by a fixed step after each update (`rebalance`).
    """

    e_score_correction_bias: Tensor
    load: Tensor

    def __init__(self, width: int, shared: int, experts: Experts) -> None:
        super().__init__()
        self.active = experts.active
        self.gate = nn.Linear(width, experts.routed, bias=False)
        self.shared_experts = DraftMLP(width, shared)
        self.experts = nn.ModuleList(DraftMLP(width, experts.width) for _ in range(experts.routed))
        self.register_buffer("e_score_correction_bias", torch.zeros(experts.routed))
        self.register_buffer("load", torch.zeros(experts.routed), persistent=False)

    @torch.no_grad()
    def start_as_identity(self) -> None:
        """Silence the routed experts, so that the mixture is its shared expert until they have learned something."""
        for expert in self.experts:
            assert isinstance(expert, DraftMLP)
            expert.down_proj.weight.zero_()

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(numbers [N, k], weights [N, k]) of the experts that serve the slots x [N, d]."""
        scores = torch.sigmoid(self.gate(x).float())
        chosen = (scores + self.e_score_correction_bias).topk(self.active, dim=-1).indices
        weights = scores.gather(-1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        slots = x.flatten(0, -2)
        chosen, weights = self.route(slots)
        learning = self.training and torch.is_grad_enabled()
        if learning:
            self.load += torch.bincount(chosen.flatten(), minlength=len(self.experts))
        output: Tensor = self.shared_experts(slots)
        for number, expert in enumerate(self.experts):
            served, rank = (chosen == number).nonzero(as_tuple=True)
            # An idle expert takes part in learning all the same: every rank of a distributed run has its gradient.
            if len(served) or learning:
                share = weights[served, rank, None] * expert(slots[served])
                output = output.index_add(0, served, share.to(output.dtype))
        return output.view_as(x)

    @torch.no_grad()
    def rebalance(
        self, over_processes: Callable[[Tensor], Tensor] = lambda own: own, speed: float = BIAS_SPEED
    ) -> None:
        """Lower the bias of experts that served more than their share since the last call, raise that of the others.

        `over_processes` sums the load over all processes that train together, whose biases thus stay the same.
        """
        load = over_processes(self.load)
        self.e_score_correction_bias += speed * torch.sign(load.mean() - load)
        self.load.zero_()


def build_mlp(config: DrafterConfig) -> nn.Module:
    """The configured feed-forward part of a layer."""
    if config.experts is None:
        return DraftMLP(config.hidden_size, config.intermediate_size)
    return MixtureOfExperts(config.hidden_size, config.intermediate_size, config.experts)
