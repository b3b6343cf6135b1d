"""Between survivals and conditional acceptances; numpy alone, for schedulers and calibrations alike."""

import numpy as np
import numpy.typing as npt


def conditionals(survival: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """c[r, j] = a[r, j] / a[r, j - 1] [B, gamma] of survivals a [B, gamma]: what `Scheduler.lengths` takes.

    Survivals that rise with j are held at the one before; after 0, conditionals are 0.
    """
    before = np.minimum.accumulate(np.concatenate([np.ones((len(survival), 1)), survival[:, :-1]], axis=1), axis=1)
    c: npt.NDArray[np.floating] = np.zeros(survival.shape)
    np.divide(np.minimum(survival, before), before, out=c, where=before > 0)
    return c
