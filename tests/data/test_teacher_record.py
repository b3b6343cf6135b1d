"""What is kept of a record is what blocks may read, and fp8 is as accurate as e4m3 can be."""

import pytest
import torch

from dspark.data.teacher_record import FeaturePrecision, TeacherRecord, from_fp8, kept_tensors, restored, to_fp8
from dspark.errors import FormatError

S, N, WIDTH, K = 9, 5, 6, 4


def record(seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(S, WIDTH, generator=generator).bfloat16()
    ids = torch.randint(0, 90, (N, K), generator=generator).int()
    return TeacherRecord(features, ids, torch.rand(N, K, generator=generator).half())


@pytest.mark.parametrize("precision", list(FeaturePrecision))
def test_needed_rows_survive_and_the_others_are_not_kept(precision):
    whole = record()
    kept = kept_tensors(whole, precision)
    back = restored(kept, S, N)
    assert (len(kept["features"]), len(kept["ids"]), len(kept["probabilities"])) == (S - 2, N - 1, N - 1)
    assert back.features.shape == whole.features.shape
    assert back.features.dtype is torch.bfloat16
    assert not back.features[-2:].any()
    assert torch.equal(back.ids[1:], whole.ids[1:])
    assert torch.equal(back.probabilities[1:], whole.probabilities[1:])
    if precision is FeaturePrecision.BF16:
        assert torch.equal(back.features[:-2], whole.features[:-2])


def test_whole_records_of_early_versions_are_restored_as_they_are():
    whole = record()
    tensors = {"features": whole.features, "ids": whole.ids, "probabilities": whole.probabilities}
    back = restored(tensors, S, N)
    assert torch.equal(back.features, whole.features)
    assert torch.equal(back.ids, whole.ids)


@pytest.mark.parametrize(("tokens", "responses"), [(S - 1, N), (S + 3, N), (S, N - 1), (S, N + 2)])
def test_a_record_of_another_length_is_refused(tokens, responses):
    kept = kept_tensors(record(), FeaturePrecision.BF16)
    if tokens == S - 1:
        kept["features"] = record().features
    if responses == N - 1:
        kept["ids"] = record().ids
    with pytest.raises(FormatError, match="rows of features"):
        restored(kept, tokens, responses)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-4, 1.0, 300.0, 1e6])
def test_fp8_rows_are_within_half_a_step_whatever_their_magnitude(magnitude):
    """e4m3 has 3 mantissa bits: half a step is 2^-4 of a value, or 2^-10 of the scale among subnormal ones."""
    rows = (torch.randn(50, 64, generator=torch.Generator().manual_seed(1)) * magnitude).bfloat16()
    codes, scales = to_fp8(rows)
    error = (from_fp8(codes, scales).float() - rows.float()).abs()
    allowed = torch.maximum(rows.float().abs() * 2.0**-4, scales[:, None] * 2.0**-10)
    assert bool((error <= allowed * 1.0001).all())
    assert codes.element_size() == 1


def test_rows_have_scales_of_their_own():
    """One loud row, as residual streams have them, does not silence the others."""
    rows = torch.full((2, 4), 0.01)
    rows[0] = 1e5
    assert from_fp8(*to_fp8(rows))[1].float().tolist() == pytest.approx([0.01] * 4, rel=2.0**-4)


@pytest.mark.parametrize(
    "row", [[0.0] * 4, [1.0, -2.0, 0.5, 448.0], [449.0, 1e-3, 0.0, -447.0], [230.0, 3.3, -7.7, 0.1]]
)
def test_keeping_what_was_restored_changes_nothing(row):
    once = from_fp8(*to_fp8(torch.tensor([row]).bfloat16()))
    assert torch.equal(from_fp8(*to_fp8(once)), once)
    assert torch.isfinite(once).all()
