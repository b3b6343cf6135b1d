"""Small records for tests."""

from typing import Any

import numpy as np

from dspark.calibration.records import DraftMode, RoundRecords


def records(accepted: list[int], gamma: int = 3, **fields: Any) -> RoundRecords:
    """Rounds with these accepted lengths; every other field may be given, else is plain."""
    count = len(accepted)
    plain = {
        "confidence": np.zeros((count, gamma)),
        "peak": np.zeros((count, gamma)),
        "entropy": np.zeros((count, gamma)),
        "overlap": np.zeros((count, gamma)),
        "history": np.ones(count),
        "accepted": np.array(accepted),
        "judged": np.full(count, gamma),
        "position": np.arange(count),
        "request": np.arange(count, dtype=np.uint64),
        "domain": np.full(count, "math"),
        "draft_mode": np.full(count, DraftMode.SAMPLED, dtype=np.uint8),
        "temperature": np.ones(count),
    }
    return RoundRecords(**(plain | fields))
