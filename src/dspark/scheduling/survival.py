"""From conditional confidences to survivals, position by position. Shapes: B requests, gamma drafts each."""

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats
from dspark.scheduling.round import Batch

ONE = np.float32(1).view(np.uint32)


def survivals(confidences: Floats | None, batch: Batch) -> Floats:
    """a[j, r] = product of c[r, i] over i <= j, [gamma, B]: never increasing in j, whatever the rounding.

    Raises:
        ConfigError: `confidences` is missing, is not [B, gamma], or holds NaN or a value outside [0, 1].
    """
    c = checked_confidences(confidences, batch)
    a = np.array(c.T, dtype=np.float32, order="C")
    before = a[0]
    for row in a[1:]:
        row *= before
        before = row
    return a


def checked_confidences(confidences: Floats | None, batch: Batch) -> Floats:
    """`confidences` [B, gamma] as they are; errors as for `survivals`."""
    if confidences is None:
        raise ConfigError(
            "confidences are missing; expected one per draft: estimate them, or choose the scheduler 'fixed'"
        )
    expected = (batch.requests, batch.gamma)
    if confidences.shape != expected:
        raise ConfigError(f"confidences have shape {confidences.shape}; expected {expected}, requests by gamma")
    if not _are_probabilities(confidences):
        request, position = np.argwhere(~((confidences >= 0) & (confidences <= 1)))[0]
        raise ConfigError(
            f"confidences[{request}, {position}] is {confidences[request, position]}; expected a probability: give "
            "calibrated probabilities, not logits, and look for NaN in the drafter"
        )
    return confidences


def _are_probabilities(c: Floats) -> bool:
    """Whether all are in [0, 1]; the bits of such numbers, NaN and negative ones excluded, order like integers."""
    if c.dtype == np.float32 and c.view(np.uint32).max() <= ONE:
        return True
    return bool(c.min() >= 0 and c.max() <= 1)  # NaN fails either comparison
