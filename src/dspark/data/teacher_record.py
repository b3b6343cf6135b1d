"""One answer as its students see it, and the form in which that is kept: needed rows only, in bfloat16 or fp8.

Shapes: S tokens of prompt and response, n of them response tokens, w = m * d features a token, K teacher tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from dspark.errors import FormatError

UNREAD_FEATURES = 2
"""The last token is no anchor, for it has no label, and blocks see strictly before their anchor."""

UNREAD_LAWS = 1
"""The first response token is no label, for its block would hang on a token without loss."""

_LARGEST = torch.finfo(torch.float8_e4m3fn).max


class FeaturePrecision(StrEnum):
    """How features are kept; 2 or 1 bytes a number. Laws do not depend on it."""

    BF16 = "bf16"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class TeacherRecord:
    """One answer as its students see it.

    `features` [S, w] bf16 at every position. Row j of `ids` and `probabilities` [n, K] is the target's distribution
    (temperature 1) of response token j given all before it, cut to its K likeliest tokens. Rows that no block reads
    may be zero: the last `UNREAD_FEATURES` of `features`, the first `UNREAD_LAWS` of the others.
    """

    features: Tensor
    ids: Tensor
    probabilities: Tensor


def kept_tensors(record: TeacherRecord, precision: FeaturePrecision) -> dict[str, Tensor]:
    """The rows of `record` that some block may read. fp8 features [S - 2, w] come with `scales` [S - 2]."""
    features = record.features[: max(0, len(record.features) - UNREAD_FEATURES)]
    laws = {"ids": record.ids[UNREAD_LAWS:], "probabilities": record.probabilities[UNREAD_LAWS:]}
    if precision is FeaturePrecision.BF16:
        return {"features": features.to(torch.bfloat16), **laws}
    codes, scales = to_fp8(features)
    return {"features": codes, "scales": scales, **laws}


def restored(tensors: Mapping[str, Tensor], tokens: int, responses: int) -> TeacherRecord:
    """The record of an answer of `tokens` tokens, `responses` of them response, from what was kept of it.

    Whole records, as early versions wrote them, are restored as they are.

    Raises:
        FormatError: there are more or fewer rows than such an answer has.
    """
    features, ids, probabilities = tensors["features"], tensors["ids"], tensors["probabilities"]
    if not (tokens - UNREAD_FEATURES <= len(features) <= tokens and responses - UNREAD_LAWS <= len(ids) <= responses):
        raise FormatError(
            f"a record has {len(features)} rows of features and {len(ids)} laws, "
            f"expected {tokens - UNREAD_FEATURES} and {responses - UNREAD_LAWS}. Empty its store; it is made again."
        )
    if "scales" in tensors:
        features = from_fp8(features, tensors["scales"])
    return TeacherRecord(
        _padded(features, 0, tokens - len(features)),
        _padded(ids, responses - len(ids), 0),
        _padded(probabilities, responses - len(probabilities), 0),
    )


def to_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes [R, w] of `rows` [R, w], and a scale [R] float32 each.

    Scales are powers of two: products with codes are exact in bfloat16, so keeping what was restored changes nothing,
    and they cost no accuracy, for e4m3 has the same relative accuracy at every magnitude but the smallest.
    """
    peaks = rows.float().abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)
    scales = torch.exp2(torch.log2(peaks / _LARGEST).ceil())
    return (rows.float() / scales[:, None]).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn), scales


def from_fp8(codes: Tensor, scales: Tensor) -> Tensor:
    """bfloat16 rows [R, w]."""
    return (codes.float() * scales[:, None]).to(torch.bfloat16)


def _padded(rows: Tensor, before: int, behind: int) -> Tensor:
    if before == behind == 0:
        return rows
    padded = rows.new_zeros(before + len(rows) + behind, rows.shape[1])
    padded[before : before + len(rows)] = rows
    return padded
