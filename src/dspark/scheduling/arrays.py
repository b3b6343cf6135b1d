"""Names for the arrays of this folder."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""Survivals are float32, which halves the time to sort them; seconds and sums are float64."""

Ints = NDArray[np.int64]
