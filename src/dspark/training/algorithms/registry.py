"""The algorithms by the name that a recipe gives them. A new one is a file in this folder and a line here."""

import difflib
from collections.abc import Mapping

from dspark.training.algorithms.algorithm import Algorithm
from dspark.training.algorithms.dspark import DSparkAlgorithm
from dspark.training.algorithms.eagle3 import Eagle3Algorithm
from dspark.training.algorithms.mtp import MTPAlgorithm

DEFAULT_ALGORITHM = "dspark"

ALGORITHMS: Mapping[str, Algorithm] = {
    DEFAULT_ALGORITHM: DSparkAlgorithm(),
    "eagle3": Eagle3Algorithm(),
    "mtp": MTPAlgorithm(),
}


def algorithm_named(name: str) -> Algorithm:
    """The algorithm called `name`. Raises ValueError, as validators of a recipe do, if there is none."""
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(ALGORITHMS)}"
        raise ValueError(f"there is no algorithm {name!r}, {hint}")
    return ALGORITHMS[name]
