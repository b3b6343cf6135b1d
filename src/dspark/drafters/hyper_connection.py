"""Residual connections of a sublayer: the plain one, or several streams that the sublayer reads from and writes to.

Shapes: leading axes [...] are slots of blocks; n streams, d width.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dspark.drafters.config import DrafterConfig
from dspark.nn.norm import rms_norm

Sublayer = Callable[[Tensor], Tensor]

INPUT_SCALE = 0.01
"""Start of alpha, the weight of what depends on the input."""

DIAGONAL = 4.0
"""Logit by which a fresh mixing matrix prefers a stream's own past: 0.95 of it stays, for 4 streams."""


class PlainResidual(nn.Module):
    """x + F(x)."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return x + sublayer(x)


class HyperConnection(nn.Module):
    """x' = H_res x + H_post F(H_pre x) for streams x [..., n, d]: manifold-constrained hyper-connections.

    Source: Xie et al., "mHC" (arXiv 2512.24880). With z = RMSNorm(vec x): H_pre = sigmoid(a_1 W_1 z + b_1) [n],
    H_post = 2 sigmoid(a_2 W_2 z + b_2) [n], H_res = Sinkhorn(a_3 W_3 z + b_3) [n, n]. A doubly stochastic H_res keeps
    the mean of the streams and stretches no difference between them.

    A fresh one is x + F(x) in every stream if all streams are equal, whatever H_res is: H_pre sums to 1, H_post is 1.
    It reads mostly stream `site` mod n, because streams that are read alike would get equal gradients for ever.
    """

    def __init__(self, width: int, streams: int, iterations: int, eps: float, site: int) -> None:
        super().__init__()
        self.streams, self.iterations, self.eps = streams, iterations, eps
        self.fn = nn.Linear(streams * width, streams * (streams + 2), bias=False)
        self.base = nn.Parameter(_fresh_base(streams, site % streams))
        self.scale = nn.Parameter(torch.full((3,), INPUT_SCALE))

    @torch.no_grad()
    def start_as_identity(self) -> None:
        """Let nothing depend on the input yet."""
        self.fn.weight.zero_()

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        pre, post, mixing = self.weights(x)
        output = sublayer((pre.unsqueeze(-2) @ x.float()).squeeze(-2).to(x.dtype))
        return (mixing @ x.float() + post.unsqueeze(-1) * output.float().unsqueeze(-2)).to(x.dtype)

    def weights(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """H_pre [..., n], H_post [..., n] and H_res [..., n, n] for streams x [..., n, d], in float32."""
        n = self.streams
        from_input = self.fn(rms_norm(x.flatten(-2), None, self.eps)).float()
        scale = self.scale.repeat_interleave(torch.tensor([n, n, n * n], device=x.device))
        pre, post, mixing = (scale * from_input + self.base).split([n, n, n * n], dim=-1)
        mixing = sinkhorn(mixing.unflatten(-1, (n, n)), self.iterations)
        return torch.sigmoid(pre), 2 * torch.sigmoid(post), mixing


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """exp(logits) [..., n, n], rows and columns scaled in turn to sum to 1 (Sinkhorn-Knopp), in the log domain.

    Columns come last and are exact; rows approach 1 with more iterations.
    """
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def split_streams(x: Tensor, streams: int) -> Tensor:
    """[..., n, d]: x [..., d] in every stream."""
    return x.unsqueeze(-2).expand(*x.shape[:-1], streams, x.shape[-1])


def merge_streams(x: Tensor) -> Tensor:
    """[..., d]: the mean of streams x [..., n, d], which mixing leaves alone."""
    return x.mean(-2)


def _fresh_base(streams: int, favourite: int) -> Tensor:
    """[n + n + n^2] b_1, b_2, b_3: H_pre is 1/2 + 1/2n at the favourite and 1/2n elsewhere, H_post 1, H_res near I."""
    read = torch.full((streams,), _logit(0.5 / streams))
    read[favourite] = _logit(0.5 + 0.5 / streams)
    return torch.cat((read, torch.zeros(streams), (DIAGONAL * torch.eye(streams)).flatten()))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def build_residual(config: DrafterConfig, site: int) -> nn.Module:
    """The residual around sublayer number `site`, counted through all layers."""
    settings = config.hyper_connections
    if settings is None:
        return PlainResidual()
    return HyperConnection(config.hidden_size, settings.streams, settings.iterations, config.rms_norm_eps, site)
