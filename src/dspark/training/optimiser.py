"""The optimisers that a recipe can name, stepped together at one learning rate.

Every trainable parameter belongs to exactly one part. Source of Muon: K. Jordan, "Muon: an optimizer for hidden layers
in neural networks" (2024); torch's own implementation runs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim

from dspark.training.recipe import OptimiserSection

_CLOCK = "step"
"""AdamW's own count of updates, which the run knows too: it is not saved."""


class Optimiser:
    """One or more torch optimisers over disjoint parameters."""

    def __init__(self, parts: Sequence[optim.Optimizer]) -> None:
        self.parts = tuple(parts)

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters that are trained."""
        return [parameter for part in self.parts for group in part.param_groups for parameter in group["params"]]

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step, for every part."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update every parameter from its gradient."""
        for part in self.parts:
            part.step()

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """What the optimiser remembers of `parameter` between steps, by name; empty before its first step."""
        found: dict[str, Any] = self._part(parameter).state.get(parameter, {})
        return {key: value for key, value in found.items() if isinstance(value, Tensor) and key != _CLOCK}

    def restore(self, parameter: Tensor, moments: dict[str, Tensor], updates: int) -> None:
        """Put back what `moments` returned after that many updates."""
        part = self._part(parameter)
        clock = {_CLOCK: torch.tensor(float(updates), device=parameter.device)} if isinstance(part, optim.AdamW) else {}
        part.state[parameter] = clock | moments

    def _part(self, parameter: Tensor) -> optim.Optimizer:
        return next(part for part in self.parts if any(parameter is own for own in self._of(part)))

    @staticmethod
    def _of(part: optim.Optimizer) -> list[Tensor]:
        return [parameter for group in part.param_groups for parameter in group["params"]]


def build_optimiser(settings: OptimiserSection, drafter: nn.Module) -> Optimiser:
    """AdamW for everything, or Muon for the backbone's matrices and AdamW for tables, heads and norms."""
    named = {name: parameter for name, parameter in drafter.named_parameters() if parameter.requires_grad}
    match settings.kind:
        case "adamw":
            return Optimiser([_adamw(settings, list(named.values()))])
        case "muon":
            matrices = [p for name, p in named.items() if p.ndim == 2 and name.startswith(("layers.", "fc."))]
            hidden = {id(matrix) for matrix in matrices}
            others = [p for p in named.values() if id(p) not in hidden]
            return Optimiser([_muon(settings, matrices), _adamw(settings, others)])


def _adamw(settings: OptimiserSection, parameters: list[nn.Parameter]) -> optim.AdamW:
    return optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _muon(settings: OptimiserSection, matrices: list[nn.Parameter]) -> optim.Muon:
    # Updates are scaled to the root-mean-square that AdamW's have, so that both parts share one learning rate.
    return optim.Muon(
        matrices, lr=settings.learning_rate, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
