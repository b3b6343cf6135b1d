"""Laws of rows of logits. Shapes: N rows, R of them asked for, W tokens of a row (V, or V_draft of a draft)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.core.kept_tokens import filters, kept_laws
from dspark.core.laws import FullLaw, Ids, KeptLaw, Law, Masses
from dspark.core.sampling import check_finite
from dspark.types import SamplingParams

NEGLIGIBLE = 87.0
"""Nats below the likeliest token: a mass is then no normal float32, and processors are slow at others."""


AT_ONCE = 2**21
"""Masses that are made together: fewer calls, but still within reach of a processor's cache."""


def row_laws(
    logits: Tensor, rows: Sequence[int], params: SamplingParams, ids: Ids | None = None
) -> Iterator[Law | None]:
    """Laws, at a temperature above 0, of rows `rows` [R] of the (penalised) `logits` [N, W]; None if all is masked.

    `ids` [W] are the target ids of a row's tokens, None if it is the target's vocabulary. A row's law has the same
    bits whatever the other rows are. Rows of a vocabulary are made when asked for, one in memory.

    Raises:
        SamplingError: one of the rows holds NaN or +inf.
    """
    if filters(params, logits.shape[1]):
        laws = kept_laws(logits, np.asarray(rows), params)
        yield from (_renamed(law, ids) if len(law.ids) else None for law in laws)
    elif len(rows) == len(logits) and logits.numel() <= AT_ONCE:
        yield from _full_laws(logits, params.temperature, ids)
    else:
        for row in rows:
            yield from _full_laws(logits[row : row + 1], params.temperature, ids)


def _full_laws(logits: Tensor, temperature: float, ids: Ids | None) -> list[Law | None]:
    masses = _masses(logits, temperature).numpy()
    alive = _alive(logits, masses)
    return [FullLaw(row, ids) if lives else None for row, lives in zip(masses, alive, strict=True)]


def _masses(logits: Tensor, temperature: float) -> Tensor:
    if temperature == 1:
        return logits.softmax(dim=-1)
    scaled = logits / temperature
    if temperature < 1:
        floor = scaled.amax(dim=-1, keepdim=True) - NEGLIGIBLE
        scaled.masked_fill_(scaled < floor, -torch.inf)
    return scaled.softmax(dim=-1)


def _alive(logits: Tensor, masses: Masses) -> list[bool]:
    """Whether rows allow a token. NaN, +inf and a full mask all turn a row into NaN: one column tells."""
    alive = masses[:, 0] >= 0
    if not alive.all():
        check_finite(logits[torch.from_numpy(~alive)].amax(dim=-1).numpy())
    lives: list[bool] = alive.tolist()
    return lives


def _renamed(law: KeptLaw, ids: Ids | None) -> KeptLaw:
    if ids is None:
        return law
    names = ids[law.ids]
    order = names.argsort()
    return KeptLaw(names[order], law.masses[order])
